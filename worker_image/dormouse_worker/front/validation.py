"""What a request may say: one table of rules, each naming field, value and limit. Pure; nothing is allocated before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from dormouse_api.limits import (
    MAX_CHAT_MESSAGES,
    MAX_LOGPROBS,
    MAX_MESSAGE_BYTES,
    MAX_REQUEST_ID_CHARS,
    MAX_STOP_STRING_BYTES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOOLS,
)
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.chat import OWN_VARIABLES
from dormouse_worker.ipc import Sampling


@dataclass(frozen=True, slots=True)
class Rule:
    """One field's limit. `bad` returns the offending value in words, or None."""

    field: str
    limit: str
    bad: Callable[[pb.SamplingParams, int], str | None]  # parameters, vocabulary size


def _outside(name: str, allows: Callable[[float], bool]) -> Callable[[pb.SamplingParams, int], str | None]:
    """Check a number, only if the caller set it."""

    def bad(params: Any, vocab_size: int) -> str | None:
        del vocab_size  # this rule is about one number
        value = getattr(params, name)
        return f"{value:g}" if params.HasField(name) and not allows(value) else None

    return bad


def _too_many(name: str, limit: int) -> Callable[[pb.SamplingParams, int], str | None]:
    def bad(params: pb.SamplingParams, vocab_size: int) -> str | None:
        del vocab_size  # this rule is about a count
        count = len(getattr(params, name))
        return f"{count} items" if count > limit else None

    return bad


def _bad_stop_length(params: pb.SamplingParams, vocab_size: int) -> str | None:
    del vocab_size  # this rule is about bytes
    lengths = [len(stop.encode()) for stop in params.stop]
    return next((f"{length} bytes" for length in lengths if not 1 <= length <= MAX_STOP_STRING_BYTES), None)


def _unknown_stop_token(params: pb.SamplingParams, vocab_size: int) -> str | None:
    return next((str(token_id) for token_id in params.stop_token_ids if token_id >= vocab_size), None)


def _min_above_max(params: pb.SamplingParams, vocab_size: int) -> str | None:
    del vocab_size  # this rule compares two fields
    return str(params.min_tokens) if params.HasField("max_tokens") and params.min_tokens > params.max_tokens else None


RULES: tuple[Rule, ...] = (
    Rule(
        "temperature", "a finite number of at least 0", _outside("temperature", lambda v: math.isfinite(v) and v >= 0)
    ),
    Rule("top_p", "above 0 and at most 1", _outside("top_p", lambda v: 0 < v <= 1)),
    Rule("min_p", "from 0 to 1", _outside("min_p", lambda v: 0 <= v <= 1)),
    Rule("max_tokens", "at least 1", _outside("max_tokens", lambda v: v >= 1)),
    Rule("min_tokens", "at most max_tokens", _min_above_max),
    Rule("logprobs", f"at most {MAX_LOGPROBS}", _outside("logprobs", lambda v: v <= MAX_LOGPROBS)),
    Rule("stop", f"at most {MAX_STOP_STRINGS} strings", _too_many("stop", MAX_STOP_STRINGS)),
    Rule("stop", f"1 to {MAX_STOP_STRING_BYTES} bytes each", _bad_stop_length),
    Rule("stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS} ids", _too_many("stop_token_ids", MAX_STOP_TOKEN_IDS)),
    Rule("stop_token_ids", "below the vocabulary size", _unknown_stop_token),
)


def check_request(request: pb.GenerateRequest, vocab_size: int) -> None:
    """Check everything that needs no tokenizing. Raises CallError INVALID_ARGUMENT."""
    size = request.ByteSize()
    if size > MAX_MESSAGE_BYTES:
        refuse("message", f"{size} bytes", f"at most {MAX_MESSAGE_BYTES} bytes")
    check_request_id(request.request_id)
    check_sampling(request.sampling_params, vocab_size)
    check_prompt(request, vocab_size)


def check_sampling(params: pb.SamplingParams, vocab_size: int) -> None:
    """Go through the table. Raises CallError INVALID_ARGUMENT for the first bad field."""
    for rule in RULES:
        value = rule.bad(params, vocab_size)
        if value is not None:
            refuse(
                f"sampling_params.{rule.field}",
                value,
                f"{rule.limit} (vocabulary size {vocab_size})" if "vocabulary" in rule.limit else rule.limit,
            )


def check_request_id(request_id: str) -> None:
    """Ids stand in logs: short, printable ASCII. Raises CallError INVALID_ARGUMENT."""
    if len(request_id) > MAX_REQUEST_ID_CHARS:
        refuse("request_id", f"{len(request_id)} characters", f"at most {MAX_REQUEST_ID_CHARS}")
    if not (request_id.isascii() and request_id.isprintable()):
        refuse("request_id", ascii(request_id), "printable ASCII characters")


def check_prompt(request: pb.GenerateRequest, vocab_size: int) -> None:
    """A prompt is there, and what it is made of is in range. Raises CallError INVALID_ARGUMENT."""
    kind = request.WhichOneof("prompt")
    if kind is None:
        refuse("prompt", "missing", "one of text, token_ids or chat is needed")
    if kind == "text" and not request.text:
        refuse("prompt.text", "empty", "at least 1 character")
    if kind == "token_ids":
        check_token_ids("prompt.token_ids", request.token_ids.ids, vocab_size)
        if not request.token_ids.ids:
            refuse("prompt.token_ids", "empty", "at least 1 token")
    if kind == "chat":
        check_chat(request.chat)


def check_token_ids(field: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Every id is a row of the embedding. Raises CallError INVALID_ARGUMENT naming the first that is not."""
    for position, token_id in enumerate(token_ids):
        if token_id >= vocab_size:
            refuse(f"{field}[{position}]", str(token_id), f"below the vocabulary size {vocab_size}")


def check_chat(chat: pb.Chat) -> None:
    """Counts are bounded and template_args leave the template's own variables alone. Raises CallError."""
    if not chat.messages:
        refuse("chat.messages", "empty", "at least 1 message")
    if len(chat.messages) > MAX_CHAT_MESSAGES:
        refuse("chat.messages", f"{len(chat.messages)} messages", f"at most {MAX_CHAT_MESSAGES}")
    if len(chat.tools) > MAX_TOOLS:
        refuse("chat.tools", f"{len(chat.tools)} tools", f"at most {MAX_TOOLS}")
    for name in _taken(chat.template_args.fields):
        refuse("chat.template_args", name, f"names other than {', '.join(OWN_VARIABLES)}")


def check_lengths(prompt_token_ids: Sequence[int], params: pb.SamplingParams, max_model_len: int) -> int:
    """Return the effective max_tokens: the wish, else the room that is left. Raises CallError INVALID_ARGUMENT."""
    num_prompt = len(prompt_token_ids)
    if num_prompt == 0:
        refuse("prompt", "0 tokens", "at least 1 token")
    if num_prompt >= max_model_len:
        refuse("prompt", f"{num_prompt} tokens", f"below the model length {max_model_len}, so that a token can follow")
    room = max_model_len - num_prompt
    if params.HasField("max_tokens") and params.max_tokens > room:
        wish = f"{params.max_tokens} beside a prompt of {num_prompt} tokens"
        refuse("sampling_params.max_tokens", wish, f"at most {room}: together the model length {max_model_len}")
    if params.min_tokens > room:
        refuse("sampling_params.min_tokens", str(params.min_tokens), f"at most {room}, the room that is left")
    return params.max_tokens if params.HasField("max_tokens") else room


def check_effective(sampling: Sampling) -> None:
    """Check what came from the model's defaults too: a broken generation_config.json must not reach the engine."""
    defaults_hold = math.isfinite(sampling.temperature) and sampling.temperature >= 0 and 0 < sampling.top_p <= 1
    if not (defaults_hold and 0 <= sampling.min_p <= 1 and sampling.top_k >= 0):
        shown = f"temperature {sampling.temperature}, top_p {sampling.top_p}, min_p {sampling.min_p}"
        refuse("sampling_params", shown, "set these fields: the model's generation_config.json has bad defaults")


def refuse(field: str, value: str, limit: str) -> NoReturn:
    """Raise the CallError that names all three."""
    raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"{field} is {value}; allowed: {limit}")


def _taken(names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if name in OWN_VARIABLES)
