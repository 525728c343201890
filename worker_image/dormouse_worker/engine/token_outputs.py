"""What a caller hears of a request after a step: its new tokens, and what is new of its prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from dormouse_worker.common.ipc import TokenLogprobs, TokenOutput
from dormouse_worker.engine.batch import Batch, ModelOutput
from dormouse_worker.engine.forward_pass import Progress
from dormouse_worker.engine.request import Request

MAX_LOGPROBS_PER_OUTPUT = 256  # prompt positions in one message to a caller: 20 alternatives each stay below 100 KiB


def token_output(progress: Progress, clock: Callable[[], float]) -> TokenOutput:
    """Return what a request got; the first time with how long it waited and computed."""
    request, logprobs = progress.request, progress.logprobs
    output = TokenOutput(request.request_id, progress.token_ids, progress.finish_reason, logprobs)
    if request.num_scored_draft_tokens:
        accepted, rejected = request.take_prediction_counts()
        scored, taken = request.take_draft_counts()
        output = replace(
            output,
            draft_tokens=scored,
            accepted_draft_tokens=taken,
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=rejected,
        )
    if request.has_answered:
        return output
    request.has_answered = True
    assert request.first_scheduled_s is not None, "a token came from a request that was scheduled"
    return replace(
        output,
        queue_seconds=request.first_scheduled_s - request.arrival_s,
        prefill_seconds=clock() - request.first_scheduled_s,
        cached_tokens=max(0, request.num_cached_tokens - request.num_virtual_tokens),
    )


def prompt_outputs(batch: Batch, output: ModelOutput, request_of: Callable[[str], Request]) -> Iterator[TokenOutput]:
    """Yield what is new of prompts' log-probabilities: after a preemption old ones come again."""
    for sequence in batch.sequences:
        part = output.prompt_logprobs.get(sequence.request_id)
        request = request_of(sequence.request_id)
        if part is not None and not request.is_leaving:
            yield from _cut(request, part[max(0, request.num_told_logprobs - sequence.start) :])


def _cut(request: Request, logprobs: list[TokenLogprobs]) -> Iterator[TokenOutput]:
    """Yield outputs of bounded size without tokens."""
    for start in range(0, len(logprobs), MAX_LOGPROBS_PER_OUTPUT):
        part = logprobs[start : start + MAX_LOGPROBS_PER_OUTPUT]
        request.num_told_logprobs += len(part)
        yield TokenOutput(request.request_id, [], prompt_logprobs=part)
