"""Images all the way: OpenAI's and Anthropic's clients, a gateway, a real worker; tokens are those of transformers."""

from __future__ import annotations

import base64
import re

import anthropic
import grpc
import openai
import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.model.testing_vision_families import IMAGE
from tests.integration.conftest import EPOCH
from tests.integration.eyes import PICTURES, QUESTION, ROWS, asked_of_transformers, write_eyes
from tests.integration.test_serve import WAIT_S, serving
from tests.worker.front.images.kit import encoded, picture

NUM_TOKENS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that sees."""
    return write_eyes(tmp_path_factory.mktemp("eyes"))


@pytest.fixture(scope="module")
def expected(model):
    """What transformers' own processor and greedy generation make of a question about pictures."""
    return asked_of_transformers(model, NUM_TOKENS)


@pytest.fixture(scope="module")
def address(model):
    """The address of a gateway before a worker of this model."""
    with serving(model, "--served-model-name", "eyes", "--max-model-len", "160") as one:
        yield one.until_said("OpenAI's API on ").split()[-1]


def url(image, kind="PNG"):
    return f"data:image/{kind.lower()};base64,{base64.b64encode(encoded(image, kind)).decode()}"


def content(*pictures):
    images = [{"type": "image_url", "image_url": {"url": url(one)}} for one in pictures]
    return [{"type": "text", "text": QUESTION}, *images]


@pytest.mark.parametrize("num_pictures", [0, 1, 3])
def test_openais_vision_example_says_what_transformers_says(address, expected, num_pictures):
    prompt, tokens = expected(*PICTURES[:num_pictures])
    with openai.OpenAI(api_key="none", base_url=address, max_retries=0, timeout=WAIT_S) as client:
        for _ in range(2):  # the second question finds its prefix, and its images
            told = client.chat.completions.create(
                model="eyes",
                messages=[{"role": "user", "content": content(*PICTURES[:num_pictures])}],
                max_tokens=NUM_TOKENS,
                temperature=0,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            )
            assert told.choices[0].token_ids == tokens
            assert told.prompt_token_ids == prompt
            details = told.usage.prompt_tokens_details
            assert (details.image_tokens or 0) == num_pictures * ROWS
            assert told.usage.prompt_tokens == len(prompt)
    if num_pictures:
        assert details.cached_tokens > 0


def test_another_image_is_no_cached_prefix(address, expected):
    with openai.OpenAI(api_key="none", base_url=address, max_retries=0, timeout=WAIT_S) as client:
        for one in (*PICTURES, *reversed(PICTURES)):
            told = client.chat.completions.create(
                model="eyes",
                messages=[{"role": "user", "content": content(one)}],
                max_tokens=NUM_TOKENS,
                temperature=0,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            )
            assert told.choices[0].token_ids == expected(one)[1]


def test_anthropics_client_counts_and_asks(address, expected):
    source = {"type": "base64", "media_type": "image/png", "data": url(PICTURES[0]).partition(",")[2]}
    turn = {"role": "user", "content": [{"type": "text", "text": QUESTION}, {"type": "image", "source": source}]}
    with anthropic.Anthropic(api_key="none", base_url=address.removesuffix("/v1"), timeout=WAIT_S) as claude:
        counted = claude.messages.count_tokens(model="eyes", messages=[turn])
        told = claude.messages.create(model="eyes", max_tokens=4, messages=[turn])
    assert counted.input_tokens == len(expected(PICTURES[0])[0])
    assert told.usage.input_tokens + (told.usage.cache_read_input_tokens or 0) == counted.input_tokens


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("data:image/png;base64,aHVzaA==", "image 1 cannot be used: it cannot be decoded"),
        ("https://169.254.169.254/hush", "the operator has allowed no hosts"),
        (url(picture(8, 8).resize((50_000, 1001)).convert("1")), "50000 × 1001 pixels"),
    ],
)
def test_what_cannot_be_seen_is_400(address, image, words):
    with openai.OpenAI(api_key="none", base_url=address, max_retries=0, timeout=WAIT_S) as client:
        part = {"type": "image_url", "image_url": {"url": image}}
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="eyes", messages=[{"role": "user", "content": [part]}])
    assert words in caught.value.message
    assert "hush" not in str(caught.value)


@pytest.fixture(scope="module")
def worker(start_worker, model):
    """A worker alone, which keeps encoded images over a light sleep."""
    made = start_worker(model, "--max-model-len", "160", "--max-num-batched-tokens", "16", "--keep-encoder-cache")
    made.start()
    return made


def ask(worker, *pictures):
    parts = [pb.ContentPart(text=QUESTION), *(pb.ContentPart(image=encoded(one)) for one in pictures)]
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", parts=parts)])
    params = pb.SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
    request = pb.GenerateRequest(chat=chat, sampling_params=params)
    return [token for message in worker.inference.Generate(request, timeout=60) for token in message.token_ids]


def num_encoded(worker):
    """Return how many images were not known yet, as metrics tell it."""
    queries, hits = (
        re.search(rf"^vllm:mm_cache_{kind}_total{{.*}} (\S+)$", worker.page(), re.MULTILINE)[1]
        for kind in ("queries", "hits")
    )
    return float(queries) - float(hits)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_worker_that_slept_between_two_questions_about_one_image_says_the_same(worker, expected, level):
    _, tokens = expected(*PICTURES)
    assert ask(worker, *PICTURES) == tokens, "in chunks of 16"
    worker.operate("Sleep", control.SleepRequest(epoch=EPOCH, level=level))
    asleep = pb.TokenizeRequest(
        chat=pb.Chat(messages=[pb.ChatMessage(role="user", parts=[pb.ContentPart(image=encoded(PICTURES[0]))])])
    )
    assert list(worker.inference.Tokenize(asleep, timeout=60).token_ids).count(IMAGE) == ROWS
    worker.operate("WakeUp", control.WakeUpRequest(epoch=EPOCH))
    if level == 3:  # another engine, that has to report and to be agreed with
        worker.start()
    before = num_encoded(worker)
    assert ask(worker, *PICTURES) == tokens
    assert num_encoded(worker) - before == (0 if level == 1 else len(PICTURES))
    assert ask(worker, PICTURES[1]) == expected(PICTURES[1])[1]


@pytest.mark.parametrize("sleeps", [True, False])
def test_forgotten_images_are_encoded_anew(worker, expected, sleeps):
    _, tokens = expected(PICTURES[0])
    assert ask(worker, PICTURES[0]) == tokens
    worker.operate("ResetPrefixCache", control.ResetPrefixCacheRequest(epoch=EPOCH))
    if sleeps:
        worker.operate("Sleep", control.SleepRequest(epoch=EPOCH, level=1))
    worker.operate("ResetMultimodalCache", control.ResetMultimodalCacheRequest(epoch=EPOCH))
    worker.operate("WakeUp", control.WakeUpRequest(epoch=EPOCH))
    before = num_encoded(worker)
    assert ask(worker, PICTURES[0]) == tokens
    assert num_encoded(worker) - before == 1


def test_a_process_that_an_image_kills_costs_nobody_else_anything(worker, expected):
    with pytest.raises(grpc.RpcError) as caught:
        worker.inference.Tokenize(
            pb.TokenizeRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user", parts=[pb.ContentPart(image=b"x")])]))
        )
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert ask(worker, PICTURES[0]) == expected(PICTURES[0])[1]
