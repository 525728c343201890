"""What a stand-in worker says: tokens are a function of prompt, seed and position."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator

import grpc

from dormouse_api.capabilities import Capability
from dormouse_api.names import Role
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb

from .worker import BLOCK_SIZE, INVALID, MODEL_LEN, VOCAB, Worker

TOKEN_S = 0.0005


def check_request(worker: Worker, request: pb.GenerateRequest, role: Role) -> None:
    """Raise CallError for what is wrong with a request."""
    if request.model not in {"", "stand-in"}:
        raise CallError(grpc.StatusCode.NOT_FOUND, f"model is {request.model}; this is stand-in")
    if request.WhichOneof("prompt") is None:
        raise CallError(INVALID, "prompt is missing")
    if any(token >= VOCAB for token in request.token_ids.ids):
        raise CallError(INVALID, f"token_ids has a token that is not below {VOCAB}")
    if len(request.token_ids.ids) > MODEL_LEN:
        raise CallError(INVALID, f"the prompt is longer than {MODEL_LEN}", reason="context_length_exceeded")
    if request.sampling_params.temperature < 0:
        raise CallError(INVALID, f"temperature is {request.sampling_params.temperature:g}; at least 0")
    if request.HasField("resume"):
        if Capability.RESUME not in worker.claims:
            raise CallError(grpc.StatusCode.UNIMPLEMENTED, "resume is not known here")
        if role is not Role.GATEWAY:
            raise CallError(INVALID, "resume is for gateways only")
        if request.resume.adapter_digest:
            raise CallError(grpc.StatusCode.UNAVAILABLE, "the name means another adapter", 1.0)


def generate(
    worker: Worker, request: pb.GenerateRequest, role: Role, when_left: Callable[[Callable[[], None]], object]
) -> Iterator[pb.GenerateResponse]:
    """Yield a request's messages. Raises CallError."""
    check_request(worker, request, role)
    number = worker.accept()
    when_left(lambda: worker.free(number))
    yield from messages(worker, request, number)
    worker.free(number)


def messages(worker: Worker, request: pb.GenerateRequest, number: int) -> Iterator[pb.GenerateResponse]:
    params, known = request.sampling_params, list(request.resume.output_token_ids)
    prompt, num_choices = list(request.token_ids.ids), params.n or 1
    beginning = tuple(prompt[: len(prompt) // BLOCK_SIZE * BLOCK_SIZE])
    usage = pb.Usage(prompt_tokens=len(prompt), completion_tokens=num_choices * len(known))
    usage.cached_tokens = len(beginning) if beginning in worker.cached else 0
    if Capability.PREFIX_CACHE in worker.claims and beginning:
        worker.cached.add(beginning)
    unsaid = text_of(known).encode()[request.resume.emitted_utf8_bytes :].decode()
    open_choices = set(range(num_choices))
    is_first = True
    for position in range(len(known), params.max_tokens):
        for choice in sorted(open_choices):
            if number not in worker.running:
                return
            seed = params.seed if params.temperature else 0
            token = token_at(worker, prompt, seed + choice, position)
            message = pb.GenerateResponse(token_ids=[token], completion_tokens=position + 1, choice_index=choice)
            message.text = unsaid + text_of([token])
            unsaid = ""
            usage.completion_tokens += 1
            if is_first:
                is_first = False
                message.request_id, message.seed = request.request_id, params.seed
            message.finish_reason = reason_of(worker, params, number, message)
            if message.finish_reason:
                open_choices.discard(choice)
            if not open_choices:
                message.usage.CopyFrom(usage)
            yield message
        if not open_choices:
            return
        time.sleep(TOKEN_S)


def reason_of(worker: Worker, params: pb.SamplingParams, number: int, message: pb.GenerateResponse) -> pb.FinishReason:
    """Return why a choice ends with this message, 0 if it goes on."""
    if message.token_ids[0] in params.stop_token_ids:
        return pb.FINISH_REASON_STOP
    if number in worker.aborted:
        return pb.FINISH_REASON_ABORT
    if message.completion_tokens >= params.max_tokens:
        return pb.FINISH_REASON_LENGTH
    return pb.FINISH_REASON_UNSPECIFIED


def token_at(worker: Worker, prompt: list[int], seed: int, position: int) -> int:
    return zlib.crc32(repr((worker.weights, prompt, seed, position)).encode()) % VOCAB


def text_of(tokens: list[int]) -> str:
    return "".join(f"{token} " for token in tokens)
