"""Requests of every kind, drawn at random, on every architecture: with drafts the tokens are those without.

Preempted, in chunks, and moved to another worker after a pass or a few, to one without drafts among them. A sample of
it runs always; `DORMOUSE_RECORD=drafts python -m pytest -m slow` with this file runs all.
"""

from __future__ import annotations

import random

import pytest

from dormouse_worker.model.testing import ARCHITECTURES, EOS, write_tiny_model
from tests.worker.executor.grammar_kit import BYTES, BoundRank, grammar, schema
from tests.worker.executor.test_bound_drafts import ask
from tests.worker.executor.test_drafts import corrupt, count
from tests.worker.executor.test_grammar_crossings import kill_and_resume
from tests.worker.executor.test_grammars import SCHEMAS

OF_OUR_KERNELS = ("cwm", "llama", "ministral", "mistral", "qwen2", "qwen3")  # whose rows have the same bits beside any
CASES = [(name, "float32") for name in sorted(ARCHITECTURES)] + [(name, "bfloat16") for name in OF_OUR_KERNELS]
SAMPLE = [("llama", "bfloat16"), ("gemma2", "float32")]
NUM_REQUESTS, NUM_OF_SAMPLE = 304, 24  # a case; 33 cases are 10,032 requests
TOGETHER = 9  # at once, and some preempted: a full batch has no rows for drafts
A_D = tuple(BYTES.index(ord(char)) for char in "abcd")
BOUND_BY = [grammar("regex", "([a-d]{3,5} ){3}end"), grammar("choice", ["aab", "abba"]), *map(schema, SCHEMAS)]


def draw_request(draw):
    """Return what binds a request, and what else it asks for."""
    run = [draw.randrange(40, 60) for _ in range(draw.randrange(2, 9))]
    asked = {
        "prompt": (run * 6)[: draw.randrange(3, 36)],
        "max_tokens": draw.randrange(4, 25),
        "temperature": draw.choice((0.0, 0.3, 0.8, 1.3)),
        "seed": draw.randrange(1 << 30),
    }
    bound_by = draw.choice(BOUND_BY) if draw.random() < 0.25 else None
    masks = {
        "bad_words_token_ids": ((run[0],), (run[-1], A_D[0])),
        "allowed_token_ids": (*range(40, 60), *A_D, EOS),
        "logit_bias": dict.fromkeys(run, draw.choice((-3.0, 2.0, 5.0))),
    }
    options = {
        "top_p": draw.choice((0.5, 0.9)),
        "top_k": draw.choice((1, 5, 40)),
        "min_p": 0.05,
        "repetition_penalty": draw.choice((0.8, 1.3)),
        "frequency_penalty": draw.choice((-0.5, 0.7)),
        "presence_penalty": 0.5,
        "logprobs": draw.choice((0, 3)),
        "min_tokens": 3,
        "stop_token_ids": (EOS, draw.choice(run)),
        "choice_index": draw.randrange(4),
        **({} if bound_by is not None else masks),
    }
    return bound_by, asked | {name: value for name, value in options.items() if draw.random() < 0.2}


def predict(draw, tokens):
    """Return a prediction that is right, wrong now and then, always wrong, cut, or none."""
    every = draw.choice((0, 1, 2, 3, 5, 100))
    return corrupt(tokens, every)[: draw.randrange(1, 1 + len(tokens))] if every else []


def same(answers, truth):
    """Return how many of these say what is true."""
    for answer, true in zip(answers, truth, strict=True):
        assert (answer.token_ids, answer.finish_reason, answer.refusal) == (true.token_ids, true.finish_reason, "")
        assert len(answer.logprobs) == len(true.logprobs)
    return len(answers)


def run_case(directory, dtype, num_requests, seed):
    """Ask for a third of the requests in each way; return how many came, were preempted, and what of drafts."""
    draw, settings = random.Random(seed), {"dtype": dtype, "swap_space_bytes": 1 << 18}
    wishes = [draw_request(draw) for _ in range(num_requests)]
    plain = BoundRank(directory, **settings)
    preempting = BoundRank(directory, speculation_method="ngram", **settings)
    chunking = BoundRank(directory, speculation_method="suffix", max_num_batched_tokens=16, **settings)
    truth, _ = ask(plain, wishes)
    predicted = [predict(draw, true.token_ids) for true in truth]
    checked, told = 0, []
    for number, start in enumerate(range(0, num_requests, TOGETHER)):
        part = slice(start, start + TOGETHER)
        if number % 3 < 2:
            answers, messages = ask((preempting, chunking)[number % 3], wishes[part], predicted=predicted[part])
            checked += same(answers, truth[part])
            told += messages
            continue
        moved = [
            ({**asked, "predicted": guess}, bound_by)
            for (bound_by, asked), guess in zip(wishes[part], predicted[part], strict=True)
        ]
        said, _ = kill_and_resume([preempting, plain, chunking], moved, draw, most_passes=3)
        assert [said[place] for place in range(len(moved))] == [true.token_ids for true in truth[part]]
        checked += len(moved)
    num_preempted = sum(each.controller._engine._scheduler.counters.preemptions for each in (preempting, chunking))
    for rank in (plain, preempting, chunking):
        rank.close()
    return checked, num_preempted, count(told)


@pytest.mark.parametrize(("architecture", "dtype"), SAMPLE)
def test_a_sample_of_all_kinds_says_the_same(tmp_path, architecture, dtype):
    directory = write_tiny_model(tmp_path, architecture)
    checked, preempted, (scored, taken) = run_case(directory, dtype, NUM_OF_SAMPLE, seed=7)
    assert checked == NUM_OF_SAMPLE
    assert preempted or architecture != "llama", "windows leave room for all"
    assert scored > taken > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("architecture", "dtype"), CASES)
def test_ten_thousand_requests_say_the_same(tmp_path, architecture, dtype, request, record_property):
    seed = (request.config.getoption("randomly_seed", 0) or 0) + CASES.index((architecture, dtype))
    directory = write_tiny_model(tmp_path, architecture)
    checked, preempted, (scored, taken) = run_case(directory, dtype, NUM_REQUESTS, seed)
    found = {"seed": seed, "requests": checked, "preempted": preempted, "drafts": scored, "taken": taken}
    for name, value in found.items():
        record_property(name, value)
    assert checked == NUM_REQUESTS
    assert scored > taken > 0
