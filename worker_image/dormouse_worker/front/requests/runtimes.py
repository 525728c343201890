"""What a request may not ask of an engine that is not ours, refused by name before anything is made of it. Pure."""

from __future__ import annotations

import grpc

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import Sampling
from dormouse_worker.front.refusing import refuse, refuse_images
from dormouse_worker.front.requests.answer_parts import Parsing

OURS = "dormouse"
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 2.0  # of vLLM's, which refuses what is above and raises what is below


def check_runtime(request: pb.GenerateRequest, runtime: str) -> None:
    """Raise CallError INVALID_ARGUMENT, naming the field, for what this runtime does not do."""
    if runtime == OURS:
        return
    limit = f"not set: this worker's runtime is {runtime}"
    if request.HasField("resume"):
        refuse("resume", "set", f"{limit}, which continues no stream of another worker")
    if request.sampling_params.HasField("structured_outputs"):
        refuse("sampling_params.structured_outputs", "set", limit)
    if request.sampling_params.logprob_token_ids:
        refuse("sampling_params.logprob_token_ids", "set", limit)
    refuse_images(request.chat, f"this worker's runtime is {runtime}")


def check_unbound(parsing: Parsing | None, runtime: str) -> None:
    """Raise CallError INVALID_ARGUMENT where tools would bind the answer, which this runtime does not do."""
    if runtime == OURS or parsing is None:
        return
    if parsing.is_forced:
        refuse("answer_parsing", "with a call that is forced", f"none forced: this worker's runtime is {runtime}")
    if parsing.strict:
        refuse("chat.tools", f"strict for {parsing.strict[:64]!r}", f"not strict: this worker's runtime is {runtime}")


def check_chosen(sampling: Sampling, runtime: str) -> None:
    """Raise CallError INVALID_ARGUMENT for parameters, the model's own among them, that this runtime would change."""
    is_greedy, is_taken = sampling.temperature == 0, MIN_TEMPERATURE <= sampling.temperature <= MAX_TEMPERATURE
    if runtime != OURS and not (is_greedy or is_taken):
        limit = f"0, or from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}: this worker's runtime is {runtime}"
        refuse("sampling_params.temperature", f"{sampling.temperature:g}", limit)


def check_decides(runtime: str) -> None:
    """Raise CallError FAILED_PRECONDITION where Decide cannot be answered."""
    if runtime != OURS:
        words = f"Decide asks for the log-probabilities of named tokens, which runtime {runtime} does not tell"
        raise CallError(grpc.StatusCode.FAILED_PRECONDITION, words)
