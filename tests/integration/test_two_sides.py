"""A real worker whose prompts an encoder reads: transformers' tokens over sleeps and resumes, and the HTTP API."""

from __future__ import annotations

import grpc
import openai
import pytest
from transformers import AutoTokenizer

from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.model.testing_sides import answers_of, write_two_sided
from tests.integration.test_embeddings import open_door
from tests.integration.test_requests import check_every_cut, generate
from tests.integration.test_sleep import sleep, wake

FLAGS = ("--max-model-len", "120", "--block-size", "8", "--keep-prefix-cache", "--threads", "1")
PROMPT = [*range(40, 70)]
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "repetition_penalty": 1.5}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_two_sided(tmp_path_factory.mktemp("random"), "t5")


@pytest.fixture(scope="module")
def expected(model):
    """What transformers answers."""
    return answers_of(model, [PROMPT], 12, repetition_penalty=1.5)[0]


@pytest.fixture(scope="module")
def reader(start_worker, model):
    worker = start_worker(model, *FLAGS)
    assert worker.start().state == control.WORKER_STATE_READY
    return worker


def say(worker, prompt=PROMPT, **sampling):
    answers, last = generate(worker, prompt, **{**GREEDY, **sampling})
    return answers[0].tokens, last.usage


@pytest.mark.parametrize(("level", "num_cached"), [(1, 30), (2, 0)])
def test_answers_are_those_of_transformers_over_every_sleep(reader, expected, level, num_cached):
    tokens, usage = say(reader)
    assert (tokens, usage.prompt_tokens, usage.completion_tokens) == (expected, 30, 12)
    assert sleep(reader, level).state == control.WORKER_STATE_ASLEEP
    assert wake(reader).state == control.WORKER_STATE_READY
    tokens, usage = say(reader)
    assert (tokens, usage.cached_tokens) == (expected, num_cached)


def test_answers_go_on_after_any_token(reader):
    sampling = {"temperature": 1.0, "seed": 9, "max_tokens": 6, "ignore_eos": True, "logprobs": 1}
    assert len(check_every_cut(reader, reader, n=2, prompt=PROMPT, **sampling)) == 2


def test_completions_over_http_have_transformers_text(reader, model, expected):
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompt = tokenizer.decode(PROMPT)
    with (
        open_door(reader) as address,
        openai.OpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0, timeout=60) as client,
    ):
        extra = {"ignore_eos": True, "repetition_penalty": 1.5}
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=12, temperature=0, extra_body=extra)
        assert answer.choices[0].text == tokenizer.decode(expected, skip_special_tokens=True)
        assert answer.usage.prompt_tokens == len(tokenizer(prompt)["input_ids"]) == 30
        with pytest.raises(openai.BadRequestError, match=r"prompt is 120 tokens; allowed: at most 112, which the enc"):
            client.completions.create(model="tiny", prompt="a" * 120)


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"),
    [
        ([5] * 113, {}, "prompt is 113 tokens; allowed: at most 112, which the encoder reads in one pass"),
        (
            PROMPT,
            {"max_tokens": 88},
            "max_tokens is 88 beside a prompt of 30 tokens; allowed: at most 87: an answer has 120",
        ),
        (
            PROMPT,
            {"min_tokens": 88, "max_tokens": None},
            "min_tokens is 88; allowed: at most 87, the room that is left",
        ),
        (PROMPT, {"prompt_logprobs": 1}, "prompt_logprobs is 1; allowed: not set where an encoder reads the prompt"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_numbers(reader, prompt, sampling, words):
    with pytest.raises(grpc.RpcError) as caught:
        say(reader, prompt, **sampling)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in caught.value.details()


def test_the_longest_of_both_sides_fit(reader):
    assert len(say(reader, [5] * 112, max_tokens=7)[0]) == 7
    assert len(say(reader, PROMPT, max_tokens=87)[0]) == 87


def test_decisions_are_refused_by_name(reader):
    request = pb.DecideRequest(
        text="a", questions=[pb.DecideQuestion(instructions="b", predicate=pb.DecideQuestion.Predicate())]
    )
    with pytest.raises(grpc.RpcError) as caught:
        reader.inference.Decide(request, timeout=60, metadata=proof(Role.GATEWAY))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "which nothing does where an encoder reads the prompt" in caught.value.details()
