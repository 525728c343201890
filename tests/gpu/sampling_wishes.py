"""Requests with every kind of sampling that there is, in one batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher

from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.model.testing import EOS
from tests.gpu.asked_rank import wish

PERIOD = [*range(40, 52)] * 3  # a prompt in which runs come again
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "is_new": {"type": "boolean"}},
    "required": ["name", "is_new"],
    "additionalProperties": False,
}
NUM_TOKENS = 20


def _grammars() -> tuple[Grammar, ...]:
    json_schema = LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA), overrides={"whitespace_flexible": False})
    texts = (json_schema, LLMatcher.grammar_from_regex("(ab|cd)[0-9]{4,12}"))
    return tuple(Grammar(text, (EOS,)) for text in texts)


def sampling_wishes(predicted: Sequence[Sequence[int]] = ()) -> list[AddRequest]:
    """Return the requests; `predicted` is what each expects to be said, if anything."""
    to_object, to_pattern = _grammars()
    ends = {"stop_token_ids": (EOS,)}
    samplings: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8, "seed": 5},
        {"temperature": 1.0, "seed": 6, "top_p": 0.9, "top_k": 40, "min_p": 0.02},
        {"temperature": 0.9, "seed": 13, "min_p": 0.2, "logprobs": 2},
        {"repetition_penalty": 1.3},
        {"temperature": 0.7, "seed": 7, "presence_penalty": 0.5, "frequency_penalty": 0.4},
        {"logprobs": 3},
        {"logprobs": 0, "logprob_token_ids": (3, 44, 250)},
        {"prompt_logprobs": 2},
        {"temperature": 0.9, "seed": 8, "logit_bias": {45: 4.0, 46: 3.0}},
        {"temperature": 0.9, "seed": 9, "bad_words_token_ids": ((41,), (42, 43), (50, 51, 40))},
        {"temperature": 0.5, "seed": 10, "allowed_token_ids": (40, 41, 42, 43, 44, 45)},
        {"temperature": 1.0, "seed": 11, "allowed_token_ids": (40, 41, 42), "stop_token_ids": (42,), "min_tokens": 9},
        {"temperature": 1.0, "seed": 12, "choice_index": 3},
        {"grammar": to_object, **ends},
        {"temperature": 1.0, "seed": 14, "grammar": to_pattern, "logprobs": 1, **ends},
    ]
    return [
        wish(PERIOD, predicted=predicted[number] if predicted else (), **{"max_tokens": NUM_TOKENS, **sampling})
        for number, sampling in enumerate(samplings)
    ]
