"""Decides who computes what in the next forward pass. First come, first served; prompts in chunks beside decoding.

Each pass gives every running sequence its pending tokens (one while decoding, a chunk of its prompt before) within a
token budget, then admits waiting sequences into what is left. A sequence is admitted with blocks for all tokens it
has, so only decoding ever needs a further block. When none is free the youngest running sequence is preempted: its
blocks are freed, it goes to the front of the queue with its output, and is computed anew later. The oldest sequence
is never preempted for another, and one sequence always fits: so there is always progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dormouse_worker.engine.batch import Batch, SampledToken, ScheduledSequence
from dormouse_worker.engine.blocks import BlockAllocator
from dormouse_worker.engine.request import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one forward pass and of one sequence."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int

    def __post_init__(self) -> None:
        assert min(self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len) > 0


@dataclass(frozen=True, slots=True)
class Progress:
    """One request got a token; `finish_reason` set = it is complete and freed."""

    request: Request
    sampled: SampledToken
    finish_reason: str | None


class Scheduler:
    """Owns the two queues: `waiting` and `running`, both oldest first."""

    def __init__(self, blocks: BlockAllocator, limits: Limits, clock: Callable[[], float]) -> None:
        assert limits.max_model_len <= blocks.num_blocks * blocks.block_size, "the longest sequence must fit alone"
        self.blocks = blocks
        self.limits = limits
        self._clock = clock
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self.num_preemptions = 0

    def __repr__(self) -> str:
        return f"Scheduler(running={self.num_running}, waiting={self.num_waiting}, {self.blocks!r})"

    @property
    def num_running(self) -> int:
        """Return how many sequences hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Return how many sequences wait for their first or next admission."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Return whether any request is unfinished."""
        return bool(self._running or self._waiting)

    @property
    def request_ids(self) -> list[str]:
        """Return every unfinished request, running ones first."""
        return [request.request_id for request in (*self._running, *self._waiting)]

    def add(self, request: Request) -> None:
        """Queue a request whose id is not known yet and whose prompt leaves room for a token."""
        assert request.request_id not in self.request_ids
        assert request.num_tokens < self.limits.max_model_len
        self._waiting.append(request)

    def remove(self, request_id: str) -> bool:
        """Forget a request and free its blocks; False if it is not known."""
        for queue in (self._running, self._waiting):
            for request in queue:
                if request.request_id == request_id:
                    queue.remove(request)
                    self.blocks.free(request_id)
                    return True
        return False

    def schedule(self) -> Batch | None:
        """Choose the next forward pass; None if nothing is to be done. Must be followed by `commit` or `remove`."""
        budget = self.limits.max_num_batched_tokens
        scheduled: list[ScheduledSequence] = []
        num_preemptions = self.num_preemptions
        for request in self._runnable():
            budget -= self._append(scheduled, request, budget)
            if budget == 0:
                break
        if budget > 0 and self.num_preemptions == num_preemptions:
            for request in self._admissible():
                budget -= self._append(scheduled, request, budget)
                if budget == 0:
                    break
        return Batch(tuple(scheduled)) if scheduled else None

    def commit(self, batch: Batch, sampled: list[SampledToken]) -> list[Progress]:
        """Record what a forward pass computed; frees the requests that are complete."""
        requests = {request.request_id: request for request in self._running}
        for sequence in batch.sequences:
            requests[sequence.request_id].num_computed_tokens = sequence.end
        return [self._record(requests[token.request_id], token) for token in sampled]

    def _record(self, request: Request, token: SampledToken) -> Progress:
        request.output_token_ids.append(token.token_id)
        reason = request.finish_reason(self.limits.max_model_len)
        if reason is not None:
            self.remove(request.request_id)
        return Progress(request, token, reason)

    def _runnable(self) -> Iterator[Request]:
        """Yield running sequences, oldest first, with blocks for all their tokens; preempts from the young end."""
        position = 0
        while position < len(self._running):
            request = self._running[position]
            while not self.blocks.grow(request.request_id, request.num_tokens):
                if self._preempt_youngest() is request:
                    return
            yield request
            position += 1

    def _preempt_youngest(self) -> Request:
        request = self._running.pop()
        self.blocks.free(request.request_id)
        request.num_computed_tokens = 0
        self._waiting.appendleft(request)
        self.num_preemptions += 1
        return request

    def _admissible(self) -> Iterator[Request]:
        """Move waiting sequences to running while a place and their blocks are free; the head is never overtaken."""
        while self._waiting and len(self._running) < self.limits.max_num_seqs:
            request = self._waiting[0]
            if not self.blocks.grow(request.request_id, request.num_tokens):
                return
            self._running.append(self._waiting.popleft())
            if request.first_scheduled_s is None:
                request.first_scheduled_s = self._clock()
            yield request

    def _append(self, scheduled: list[ScheduledSequence], request: Request, budget: int) -> int:
        """Add the request's next tokens to the pass; return how many."""
        start = request.num_computed_tokens
        end = min(request.num_tokens, start + budget)
        scheduled.append(
            ScheduledSequence(
                request_id=request.request_id,
                token_ids=request.token_ids(start, end),
                start=start,
                block_ids=list(self.blocks.table(request.request_id)),
                sampling=request.sampling,
                samples=end == request.num_tokens,
                num_outputs=len(request.output_token_ids),
            )
        )
        return end - start
