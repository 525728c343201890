"""What a request may say, each refusal naming field, value and limit. Pure; nothing is allocated before."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dormouse_api.images import num_image_bytes
from dormouse_api.limits import (
    MAX_ADDRESS_CHARS,
    MAX_CHOICES,
    MAX_MESSAGE_BYTES,
    MAX_PRIORITY,
    MAX_REPETITION_PENALTY,
    MAX_STREAM_INTERVAL,
)
from dormouse_api.status import CONTEXT_LENGTH_EXCEEDED
from dormouse_api.tickets import MAX_CHARS, MAX_SHOWN
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import Sampling
from dormouse_worker.front.refusing import check_plain, check_request_id, refuse
from dormouse_worker.front.sampling_rules import RULES
from dormouse_worker.front.text.chat_checks import check_chat


def check_request(request: pb.GenerateRequest, vocab_size: int, *, from_gateway: bool) -> None:
    """Check everything that needs no tokenizing. Raises CallError INVALID_ARGUMENT."""
    check_size(request)
    check_request_id(request.request_id)
    if abs(request.priority) > MAX_PRIORITY:
        refuse("priority", str(request.priority), f"from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    if request.stream_interval > MAX_STREAM_INTERVAL:
        refuse("stream_interval", str(request.stream_interval), f"at most {MAX_STREAM_INTERVAL} tokens; 0 is 1")
    check_sampling(request.sampling_params, vocab_size)
    check_prompt(request, vocab_size)
    if request.HasField("resume"):
        check_resume(request, vocab_size, from_gateway=from_gateway)
    if request.remote_decode:
        _check_remote_decode(request, from_gateway=from_gateway)


def check_size(request: pb.GenerateRequest | pb.TokenizeRequest) -> None:
    """Everything but images fits a message. Raises CallError INVALID_ARGUMENT."""
    size = request.ByteSize() - num_image_bytes(request.chat)
    if size > MAX_MESSAGE_BYTES:
        refuse("message", f"{size} bytes", f"at most {MAX_MESSAGE_BYTES} bytes")


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


def check_resume(request: pb.GenerateRequest, vocab_size: int, *, from_gateway: bool) -> None:
    """Only the gateway knows what another worker generated, and each choice is resumed alone. Raises CallError."""
    if not from_gateway:
        refuse("resume", "set", "only by the gateway")
    if request.sampling_params.n > 1:
        refuse("sampling_params.n", str(request.sampling_params.n), "1 where resume is set")
    if request.resume.choice_index >= MAX_CHOICES:
        refuse("resume.choice_index", str(request.resume.choice_index), f"below {MAX_CHOICES}")
    check_token_ids("resume.output_token_ids", request.resume.output_token_ids, vocab_size)
    _check_kv_source(request.resume.kv_source)


def _check_remote_decode(request: pb.GenerateRequest, *, from_gateway: bool) -> None:
    if not from_gateway:
        refuse("remote_decode", "true", "only by the gateway")
    if request.HasField("resume"):
        refuse("remote_decode", "true beside resume", "one of the two")
    if request.sampling_params.n > 1:
        refuse("sampling_params.n", str(request.sampling_params.n), "1 where remote_decode is set")


def _check_kv_source(source: pb.KvSource) -> None:
    check_plain("resume.kv_source.address", source.address, MAX_ADDRESS_CHARS)
    if len(source.tickets) > MAX_SHOWN:
        refuse("resume.kv_source.tickets", f"{len(source.tickets)} tickets", f"at most {MAX_SHOWN}")
    for place, ticket in enumerate(source.tickets):
        check_plain(f"resume.kv_source.tickets[{place}]", ticket, MAX_CHARS)


def check_token_ids(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Every id is a row of the embedding. Raises CallError INVALID_ARGUMENT naming the first that is not."""
    if not token_ids or max(token_ids) < vocab_size:  # a million of them: no loop of ours while all other streams wait
        return
    for position, token_id in enumerate(token_ids):
        if token_id >= vocab_size:
            refuse(f"{field}[{position}]", str(token_id), f"below the vocabulary size {vocab_size}")


def check_made_of(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """A text's tokens are rows of the embedding: a tokenizer may know more of them. Raises CallError."""
    if token_ids and max(token_ids) >= vocab_size:
        limit = f"text of tokens below the vocabulary size {vocab_size}; the tokenizer knows more than the model"
        refuse(field, f"made of token {max(token_ids)}, among others", limit)


def check_lengths(
    prompt_token_ids: Sequence[int], params: pb.SamplingParams, max_model_len: int, num_virtual_tokens: int = 0
) -> int:
    """Return the effective max_tokens: the wish, else the room that is left. Raises CallError INVALID_ARGUMENT.

    A soft prompt's tokens stand in front of the prompt.
    """
    num_prompt, length = len(prompt_token_ids), f"the model length {max_model_len}"
    if num_virtual_tokens:
        max_model_len -= num_virtual_tokens
        length += f" less {num_virtual_tokens} of its soft prompt"
    if num_prompt == 0:
        refuse("prompt", "0 tokens", "at least 1 token")
    if num_prompt >= max_model_len:
        limit = f"below {length}, so that a token can follow"
        refuse("prompt", f"{num_prompt} tokens", limit, reason=CONTEXT_LENGTH_EXCEEDED)
    room = max_model_len - num_prompt
    return effective_max_tokens(params, num_prompt, room, f"at most {room}: together {length}")


def effective_max_tokens(params: pb.SamplingParams, num_prompt: int, most: int, limit: str) -> int:
    """Return max_tokens, or `most` where none is asked for. Raises CallError INVALID_ARGUMENT, naming `limit`."""
    if params.HasField("max_tokens") and params.max_tokens > most:
        wish = f"{params.max_tokens} beside a prompt of {num_prompt} tokens"
        refuse("sampling_params.max_tokens", wish, limit, reason=CONTEXT_LENGTH_EXCEEDED)
    if params.min_tokens > most:
        refuse("sampling_params.min_tokens", str(params.min_tokens), f"at most {most}, the room that is left")
    return params.max_tokens if params.HasField("max_tokens") else most


def check_effective(sampling: Sampling) -> None:
    """Check what came from the model's defaults too: a broken generation_config.json must not reach the engine."""
    defaults_hold = math.isfinite(sampling.temperature) and sampling.temperature >= 0 and 0 < sampling.top_p <= 1
    penalty_holds = 0 < sampling.repetition_penalty <= MAX_REPETITION_PENALTY
    if not (defaults_hold and penalty_holds and 0 <= sampling.min_p <= 1 and sampling.top_k >= 0):
        shown = (
            f"temperature {sampling.temperature}, top_p {sampling.top_p}, min_p {sampling.min_p}, "
            f"repetition_penalty {sampling.repetition_penalty}"
        )
        refuse("sampling_params", shown, "set these fields: the model's generation_config.json has bad defaults")


def check_choosable(sampling: Sampling, vocab_size: int) -> None:
    """A token can be sampled at every step: the sampler has no answer where all are forbidden. Raises CallError."""
    forbidden = {word[-1] for word in sampling.bad_words_token_ids}
    if sampling.min_tokens > 0:
        forbidden.update(sampling.stop_token_ids)
    allowed = set(sampling.allowed_token_ids)
    if not (allowed - forbidden if allowed else len(forbidden) < vocab_size):
        refuse(
            "sampling_params.allowed_token_ids" if allowed else "sampling_params.bad_words",
            f"{len(allowed) or vocab_size} ids that may all be forbidden at once",
            "at least one id that ends no bad word and, with min_tokens, no text",
        )


def check_continuable(request: pb.GenerateRequest, sampling: Sampling) -> None:
    """A resumed sequence fits, and its random numbers are known. Raises CallError INVALID_ARGUMENT."""
    num_resumed = len(request.resume.output_token_ids)
    if num_resumed > sampling.max_tokens:
        refuse("resume.output_token_ids", f"{num_resumed} tokens", f"at most max_tokens, {sampling.max_tokens}")
    if sampling.temperature > 0 and not request.sampling_params.HasField("seed"):
        refuse("sampling_params.seed", "missing", "the seed that the first message told, as resume is set")
