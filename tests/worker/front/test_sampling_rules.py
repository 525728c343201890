"""The table of limits: what stands at a limit is allowed; what is beyond is refused by name, value and limit."""

from __future__ import annotations

import math

import grpc
import pytest

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.requests.validation import check_sampling

VOCAB_SIZE = 2000
TOP = VOCAB_SIZE - 1
ONE_OF = "no constraint; allowed: one of json_schema, json_object (true), regex, choice, grammar and structural_tag"

# each pair: allowed at the limit, refused beyond it, and in which words
LIMITS = [
    ({"temperature": 0}, {"temperature": -0.5}, "temperature is -0.5; allowed: a finite number of at least 0"),
    ({"temperature": 99}, {"temperature": math.inf}, "temperature is inf; allowed: a finite number of at least 0"),
    ({"temperature": 0.25}, {"temperature": math.nan}, "temperature is nan; allowed: a finite number of at least 0"),
    ({"top_p": 0.125}, {"top_p": 0}, "top_p is 0; allowed: above 0 and at most 1"),
    ({"top_p": 1}, {"top_p": 1.0625}, "top_p is 1.0625; allowed: above 0 and at most 1"),
    ({"min_p": 0}, {"min_p": -0.125}, "min_p is -0.125; allowed: from 0 to 1"),
    ({"min_p": 1}, {"min_p": 1.125}, "min_p is 1.125; allowed: from 0 to 1"),
    ({"max_tokens": 1}, {"max_tokens": 0}, "max_tokens is 0; allowed: at least 1"),
    (
        {"max_tokens": 2, "min_tokens": 2},
        {"max_tokens": 2, "min_tokens": 3},
        "min_tokens is 3; allowed: at most max_tokens",
    ),
    ({"min_tokens": 3}, {"max_tokens": 1, "min_tokens": 2}, "min_tokens is 2; allowed: at most max_tokens"),
    ({"n": 1}, {"n": 0}, "n is 0; allowed: from 1 to 16"),
    ({"n": 16}, {"n": 17}, "n is 17; allowed: from 1 to 16"),
    ({"logprobs": 20}, {"logprobs": 21}, "logprobs is 21; allowed: at most 20"),
    ({"prompt_logprobs": 20}, {"prompt_logprobs": 21}, "prompt_logprobs is 21; allowed: at most 20"),
    (
        {"repetition_penalty": 0.5},
        {"repetition_penalty": 0},
        "repetition_penalty is 0; allowed: above 0 and at most 100",
    ),
    (
        {"repetition_penalty": 100},
        {"repetition_penalty": 100.5},
        "repetition_penalty is 100.5; allowed: above 0 and at most 100",
    ),
    ({"presence_penalty": -2}, {"presence_penalty": -2.5}, "presence_penalty is -2.5; allowed: from -2 to 2"),
    ({"presence_penalty": 2}, {"presence_penalty": 2.5}, "presence_penalty is 2.5; allowed: from -2 to 2"),
    ({"frequency_penalty": -2}, {"frequency_penalty": -2.5}, "frequency_penalty is -2.5; allowed: from -2 to 2"),
    ({"frequency_penalty": 2}, {"frequency_penalty": 2.5}, "frequency_penalty is 2.5; allowed: from -2 to 2"),
    ({"stop": ["a"] * 4}, {"stop": ["a"] * 5}, "stop is 5 items; allowed: at most 4 strings"),
    ({"stop": ["a", "é" * 32]}, {"stop": ["a", "é" * 33]}, "stop is 66 bytes; allowed: 1 to 64 bytes each"),
    ({"stop": ["a"]}, {"stop": [""]}, "stop is 0 bytes; allowed: 1 to 64 bytes each"),
    (
        {"stop_token_ids": [1] * 64},
        {"stop_token_ids": [1] * 65},
        "stop_token_ids is 65 items; allowed: at most 64 ids",
    ),
    (
        {"stop_token_ids": [0, TOP]},
        {"stop_token_ids": [0, VOCAB_SIZE]},
        "stop_token_ids is 2000; allowed: below the vocabulary size (vocabulary size 2000)",
    ),
    (
        {"logit_bias": dict.fromkeys(range(300), 1.0)},
        {"logit_bias": dict.fromkeys(range(301), 1.0)},
        "logit_bias is 301 items; allowed: at most 300 ids",
    ),
    (
        {"logit_bias": {TOP: 1.0}},
        {"logit_bias": {VOCAB_SIZE: 1.0}},
        "logit_bias is 2000; allowed: below the vocabulary size (vocabulary size 2000)",
    ),
    (
        {"logit_bias": {7: -100, 8: 100}},
        {"logit_bias": {7: -100.5}},
        "logit_bias is -100.5 for 7; allowed: from -100 to 100 each",
    ),
    (
        {"allowed_token_ids": [1] * 1024},
        {"allowed_token_ids": [1] * 1025},
        "allowed_token_ids is 1025 items; allowed: at most 1024 ids",
    ),
    (
        {"allowed_token_ids": [TOP]},
        {"allowed_token_ids": [VOCAB_SIZE]},
        "allowed_token_ids is 2000; allowed: below the vocabulary size (vocabulary size 2000)",
    ),
    ({"bad_words": ["a"] * 64}, {"bad_words": ["a"] * 65}, "bad_words is 65 items; allowed: at most 64 words"),
    ({"bad_words": ["a" * 64]}, {"bad_words": ["a" * 65]}, "bad_words is 65 bytes; allowed: 1 to 64 bytes each"),
    ({"structured_outputs": {"json_schema": ""}}, {"structured_outputs": {}}, f"structured_outputs is {ONE_OF}"),
    (
        {"structured_outputs": {"json_object": True}},
        {"structured_outputs": {"json_object": False}},
        f"structured_outputs is {ONE_OF}",
    ),
    (
        {"structured_outputs": {"regex": "a" * (2**18 - 4)}},
        {"structured_outputs": {"regex": "a" * (2**18 - 3)}},
        "structured_outputs is 262145 bytes; allowed: at most 262144 bytes",
    ),
    (
        {"structured_outputs": {"choice": {"options": ["a"] * 1024}}},
        {"structured_outputs": {"choice": {"options": ["a"] * 1025}}},
        "structured_outputs.choice is 1025 options; allowed: 1 to 1024 options, none of them empty",
    ),
    (
        {"structured_outputs": {"choice": {"options": ["a"]}}},
        {"structured_outputs": {"choice": {}}},
        "structured_outputs.choice is 0 options; allowed: 1 to 1024 options, none of them empty",
    ),
    (
        {},
        {"structured_outputs": {"choice": {"options": ["a", ""]}}},
        "structured_outputs.choice is an empty option; allowed: 1 to 1024 options, none of them empty",
    ),
]


def refusal(**params):
    """Return the sentence that refuses these."""
    with pytest.raises(CallError) as caught:
        check_sampling(pb.SamplingParams(**params), VOCAB_SIZE)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    return caught.value.message


@pytest.mark.parametrize(("good", "bad", "words"), LIMITS)
def test_a_parameter_at_its_limit_is_allowed_and_beyond_it_refused(good, bad, words):
    check_sampling(pb.SamplingParams(**good), VOCAB_SIZE)
    assert refusal(**bad) == f"sampling_params.{words}"


def test_a_small_number_is_shown_with_ten_digits():
    assert refusal(top_p=-1 / 3) == "sampling_params.top_p is -0.3333333433; allowed: above 0 and at most 1"
    words = "sampling_params.logit_bias is 100.0000076 for 3; allowed: from -100 to 100 each"
    assert refusal(logit_bias={3: 100.00001}) == words
