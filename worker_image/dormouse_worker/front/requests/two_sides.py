"""What the engine gets of a prompt: its tokens, or a source for an encoder and what its answer begins with. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from dormouse_api.status import CONTEXT_LENGTH_EXCEEDED, CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import EngineStatus
from dormouse_worker.common.sides import joined
from dormouse_worker.front.refusing import refuse
from dormouse_worker.front.requests.validation import check_lengths, effective_max_tokens

_WHERE = "where an encoder reads the prompt"


@dataclass(frozen=True, slots=True)
class Opening:
    """How a sequence begins."""

    token_ids: list[int]  # before the output
    said: Sequence[int]  # of them, what the output follows
    max_tokens: int  # of the output
    num_source_tokens: int = 0
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()  # that the model's files forbid


def open_sequence(
    prompt: list[int], params: pb.SamplingParams, engine: EngineStatus, *, max_model_len: int, in_front: int = 0
) -> Opening:
    """Return how the sequence of a prompt begins. Raises CallError INVALID_ARGUMENT, naming the side and its limit.

    `in_front` are the tokens of a soft prompt; where an encoder reads the prompt there are no adapters.
    """
    sides = engine.model.sides if engine.model is not None else None
    if sides is None or engine.report is None:
        return Opening(prompt, prompt, check_lengths(prompt, params, max_model_len, in_front))
    if params.HasField("prompt_logprobs"):
        refuse("sampling_params.prompt_logprobs", str(params.prompt_logprobs), f"not set {_WHERE}")
    num_source = len(prompt)
    if num_source > sides.max_source_tokens:
        limit = f"at most {sides.max_source_tokens}, which the encoder reads in one pass"
        refuse("prompt", f"{num_source} tokens", limit, reason=CONTEXT_LENGTH_EXCEEDED)
    if not num_source:
        refuse("prompt", "0 tokens", "at least 1 token")
    token_ids = joined(prompt, sides.opening, engine.report.block_size)
    room = max_model_len - len(token_ids)
    most = min(sides.max_target_tokens - len(sides.opening), room)
    limit = f"at most {most}: an answer has {sides.max_target_tokens} with its opening, and {room} fit behind it"
    max_tokens = effective_max_tokens(params, num_source, most, limit)
    return Opening(token_ids, sides.opening, max_tokens, num_source, sides.bad_words_token_ids)


def check_reads(engine: EngineStatus) -> None:
    """Raise CallError FAILED_PRECONDITION where Decide cannot be answered: a question goes on from the text."""
    if engine.model is not None and engine.model.sides is not None:
        words = f"Decide asks what follows a text, which nothing does {_WHERE}; call Generate (/v1/completions)"
        raise CallError(grpc.StatusCode.FAILED_PRECONDITION, words)
