"""The table of what `SamplingParams` may say: one row for each limit of each field. Pure; knows no gRPC."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dormouse_api.limits import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORD_BYTES,
    MAX_BAD_WORDS,
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIASES,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_STOP_STRING_BYTES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_STRUCTURED_OUTPUTS_BYTES,
    MAX_STRUCTURED_OUTPUTS_CHOICES,
)
from dormouse_api.v1 import inference_pb2 as pb

Check = Callable[[pb.SamplingParams, int], str | None]  # parameters, vocabulary size → the offending value in words


@dataclass(frozen=True, slots=True)
class Rule:
    """One field's limit. `bad` returns the offending value in words, or None."""

    field: str
    limit: str
    bad: Check


def _outside(name: str, allows: Callable[[float], bool], params: Any, vocab_size: int) -> str | None:
    """Check a number, only if the caller set it. A NaN is outside every range: write `allows` as what is allowed."""
    del vocab_size  # this rule is about one number
    value = getattr(params, name)
    return f"{value:.10g}" if params.HasField(name) and not allows(value) else None


def _too_many(name: str, limit: int, params: pb.SamplingParams, vocab_size: int) -> str | None:
    del vocab_size  # this rule is about a count
    count = len(getattr(params, name))
    return f"{count} items" if count > limit else None


def _bad_lengths(name: str, limit: int, params: pb.SamplingParams, vocab_size: int) -> str | None:
    """Check that every string has 1 to `limit` bytes."""
    del vocab_size  # this rule is about bytes
    lengths = [len(text.encode()) for text in getattr(params, name)]
    return next((f"{length} bytes" for length in lengths if not 1 <= length <= limit), None)


def _unknown_token(name: str, params: pb.SamplingParams, vocab_size: int) -> str | None:
    """Check that every id (of a map: every key) is in the vocabulary."""
    ids: Iterable[int] = getattr(params, name)
    return next((str(token_id) for token_id in ids if token_id >= vocab_size), None)


def _bad_bias(params: pb.SamplingParams, vocab_size: int) -> str | None:
    del vocab_size  # this rule is about the values
    return next(
        (f"{bias:.10g} for {i}" for i, bias in params.logit_bias.items() if not abs(bias) <= MAX_LOGIT_BIAS), None
    )


def _min_above_max(params: pb.SamplingParams, vocab_size: int) -> str | None:
    del vocab_size  # this rule compares two fields
    return str(params.min_tokens) if params.HasField("max_tokens") and params.min_tokens > params.max_tokens else None


def _unconstrained(params: pb.SamplingParams, vocab_size: int) -> str | None:
    del vocab_size  # this rule is about what is set
    asked = params.structured_outputs
    is_empty = asked.WhichOneof("constraint") is None or (asked.HasField("json_object") and not asked.json_object)
    return "no constraint" if params.HasField("structured_outputs") and is_empty else None


def _large_constraint(params: pb.SamplingParams, vocab_size: int) -> str | None:
    del vocab_size  # this rule is about bytes
    size = params.structured_outputs.ByteSize()
    return f"{size} bytes" if size > MAX_STRUCTURED_OUTPUTS_BYTES else None


def _bad_choices(params: pb.SamplingParams, vocab_size: int) -> str | None:
    del vocab_size  # this rule is about strings
    if not params.structured_outputs.HasField("choice"):
        return None
    options = params.structured_outputs.choice.options
    if not 1 <= len(options) <= MAX_STRUCTURED_OUTPUTS_CHOICES:
        return f"{len(options)} options"
    return None if all(options) else "an empty option"


def _is_penalty(value: float) -> bool:
    return abs(value) <= MAX_PENALTY


_IN_VOCABULARY = "below the vocabulary size"

RULES: tuple[Rule, ...] = (
    Rule(
        "temperature",
        "a finite number of at least 0",
        partial(_outside, "temperature", lambda v: math.isfinite(v) and v >= 0),
    ),
    Rule("top_p", "above 0 and at most 1", partial(_outside, "top_p", lambda v: 0 < v <= 1)),
    Rule("min_p", "from 0 to 1", partial(_outside, "min_p", lambda v: 0 <= v <= 1)),
    Rule("max_tokens", "at least 1", partial(_outside, "max_tokens", lambda v: v >= 1)),
    Rule("min_tokens", "at most max_tokens", _min_above_max),
    Rule("n", f"from 1 to {MAX_CHOICES}", partial(_outside, "n", lambda v: 1 <= v <= MAX_CHOICES)),
    Rule("logprobs", f"at most {MAX_LOGPROBS}", partial(_outside, "logprobs", lambda v: v <= MAX_LOGPROBS)),
    Rule(
        "prompt_logprobs", f"at most {MAX_LOGPROBS}", partial(_outside, "prompt_logprobs", lambda v: v <= MAX_LOGPROBS)
    ),
    Rule(
        "repetition_penalty",
        f"above 0 and at most {MAX_REPETITION_PENALTY:g}",
        partial(_outside, "repetition_penalty", lambda v: 0 < v <= MAX_REPETITION_PENALTY),
    ),
    Rule(
        "presence_penalty",
        f"from -{MAX_PENALTY:g} to {MAX_PENALTY:g}",
        partial(_outside, "presence_penalty", _is_penalty),
    ),
    Rule(
        "frequency_penalty",
        f"from -{MAX_PENALTY:g} to {MAX_PENALTY:g}",
        partial(_outside, "frequency_penalty", _is_penalty),
    ),
    Rule("stop", f"at most {MAX_STOP_STRINGS} strings", partial(_too_many, "stop", MAX_STOP_STRINGS)),
    Rule("stop", f"1 to {MAX_STOP_STRING_BYTES} bytes each", partial(_bad_lengths, "stop", MAX_STOP_STRING_BYTES)),
    Rule(
        "stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS} ids", partial(_too_many, "stop_token_ids", MAX_STOP_TOKEN_IDS)
    ),
    Rule("stop_token_ids", _IN_VOCABULARY, partial(_unknown_token, "stop_token_ids")),
    Rule("logit_bias", f"at most {MAX_LOGIT_BIASES} ids", partial(_too_many, "logit_bias", MAX_LOGIT_BIASES)),
    Rule("logit_bias", _IN_VOCABULARY, partial(_unknown_token, "logit_bias")),
    Rule("logit_bias", f"from -{MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g} each", _bad_bias),
    Rule(
        "allowed_token_ids",
        f"at most {MAX_ALLOWED_TOKEN_IDS} ids",
        partial(_too_many, "allowed_token_ids", MAX_ALLOWED_TOKEN_IDS),
    ),
    Rule("allowed_token_ids", _IN_VOCABULARY, partial(_unknown_token, "allowed_token_ids")),
    Rule(
        "logprob_token_ids",
        f"at most {MAX_LOGPROB_TOKEN_IDS} ids",
        partial(_too_many, "logprob_token_ids", MAX_LOGPROB_TOKEN_IDS),
    ),
    Rule("logprob_token_ids", _IN_VOCABULARY, partial(_unknown_token, "logprob_token_ids")),
    Rule("bad_words", f"at most {MAX_BAD_WORDS} words", partial(_too_many, "bad_words", MAX_BAD_WORDS)),
    Rule("bad_words", f"1 to {MAX_BAD_WORD_BYTES} bytes each", partial(_bad_lengths, "bad_words", MAX_BAD_WORD_BYTES)),
    Rule(
        "structured_outputs",
        "one of json_schema, json_object (true), regex, choice, grammar and structural_tag",
        _unconstrained,
    ),
    Rule("structured_outputs", f"at most {MAX_STRUCTURED_OUTPUTS_BYTES} bytes", _large_constraint),
    Rule(
        "structured_outputs.choice",
        f"1 to {MAX_STRUCTURED_OUTPUTS_CHOICES} options, none of them empty",
        _bad_choices,
    ),
)
