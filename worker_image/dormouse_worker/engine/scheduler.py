"""Decides who computes what in the next forward pass. By priority, then first come, first served; prompts in chunks.

Each pass gives every running sequence its pending tokens (one while decoding, a chunk of its prompt before) within a
token budget, then admits waiting sequences into what is left. A sequence is admitted with blocks for all tokens it
has, so (windows apart) only decoding ever needs a further block. When none is left the last running sequence in line
is preempted: its blocks go to host memory if there is room, else they are freed and it is computed anew; it waits in
its old place in line. The first in line is never preempted, and one sequence always fits: so there is always progress.
There is no aging: a steady stream of requests that go first starves those of a lower priority, as in vLLM.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from dormouse_worker.engine.batch import Batch, Moves, NewSequence, SampledToken, ScheduledSequence
from dormouse_worker.engine.block_tables import BlockTables, Prefix, Shortage
from dormouse_worker.engine.prefix import BlockHash
from dormouse_worker.engine.prompt_turns import PromptTurns
from dormouse_worker.engine.rank_view import RankView
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.swap import SwapSpace

_in_line = attrgetter("order")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one forward pass and of one sequence."""

    max_num_seqs: int  # running sequences; also the most rows whose logits one pass computes
    max_num_batched_tokens: int
    max_model_len: int
    caches_prefixes: bool = True

    def __post_init__(self) -> None:
        assert min(self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len) > 0


@dataclass(frozen=True, slots=True)
class Progress:
    """One request got a token; `finish_reason` set = it is complete and freed."""

    request: Request
    sampled: SampledToken
    finish_reason: str | None


@dataclass(slots=True)
class Counters:
    """Events since the start; they only grow."""

    preemptions: int = 0
    swaps: int = 0  # preemptions that went to host memory
    prefix_queries: int = 0  # tokens looked up in the prefix cache, at the first admission of a request
    prefix_hits: int = 0  # of these, found


@dataclass(slots=True)
class _Pass:
    """A batch in the making, and what is left of its budgets."""

    tokens_left: int
    spare_logit_rows: int  # beside the one that every running sequence has for sampling
    swap_out: Moves = ()
    swap_in: Moves = ()
    new: list[NewSequence] = field(default_factory=list)
    sequences: list[ScheduledSequence] = field(default_factory=list)


class Scheduler:
    """Owns the two queues, `waiting` and `running`, both in line order, and who lies in host memory."""

    def __init__(self, tables: BlockTables, swap: SwapSpace, limits: Limits, clock: Callable[[], float]) -> None:
        most = tables.layout.most_blocks(limits.max_model_len, limits.max_num_batched_tokens)
        assert most <= tables.pool.num_blocks, "the longest sequence must fit alone"
        self.tables = tables
        self.swap = swap
        self.limits = limits
        self.counters = Counters()
        self._clock = clock
        self._requests: dict[str, Request] = {}
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._ranks = RankView()
        self._turns = PromptTurns(limits.max_num_seqs)
        self._num_arrived = 0

    def __repr__(self) -> str:
        return f"Scheduler(running={self.num_running}, waiting={self.num_waiting}, {self.tables!r}, {self.swap!r})"

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
        return bool(self._requests)

    @property
    def request_ids(self) -> list[str]:
        """Return every unfinished request, running ones first."""
        return [request.request_id for request in (*self._running, *self._waiting)]

    def add(self, request: Request) -> None:
        """Queue a request whose id is not known yet and whose tokens leave room for another."""
        assert request.request_id not in self._requests
        assert request.num_tokens < self.limits.max_model_len
        self._num_arrived += 1
        request.number = self._num_arrived
        self._requests[request.request_id] = request
        insort(self._waiting, request, key=_in_line)

    def remove(self, request_id: str) -> bool:
        """Forget a request and free its blocks; False if it is not known."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        queue = self._running if request in self._running else self._waiting
        queue.remove(request)
        self.tables.free(request_id)
        self.swap.drop(request_id)
        self._ranks.release(request_id)
        return True

    def schedule(self) -> Batch | None:
        """Choose the next forward pass; None if nothing is to be done. Must be followed by `commit` or `fail`."""
        sharing = self._turns.take(self._running)
        num_reserved_rows = len(sharing or self._running)
        current = _Pass(self.limits.max_num_batched_tokens, self.limits.max_num_seqs - num_reserved_rows)
        num_preemptions = self.counters.preemptions
        for request, end in self._runnable(current, sharing):
            self._append(current, request, end)
        if self.counters.preemptions == num_preemptions and not sharing:
            for request, end in self._admissible(current):
                self._append(current, request, end)
        if not current.sequences:
            return None
        is_fresh, released = self._ranks.take_released()
        new, sequences = tuple(current.new), tuple(current.sequences)
        return Batch(is_fresh, released, current.swap_out, current.swap_in, new, sequences)

    def commit(self, batch: Batch, sampled: list[SampledToken]) -> list[Progress]:
        """Record what a forward pass computed; frees the requests that are complete."""
        for sequence in batch.sequences:
            request = self._requests[sequence.request_id]
            request.num_computed_tokens = sequence.end
            if self.tables.layout.fills_block(sequence.start, sequence.end):
                self.tables.commit(request.request_id, self._hashes(request, sequence.end), sequence.end)
        return [self._record(self._requests[token.request_id], token) for token in sampled]

    def fail(self, batch: Batch) -> list[str]:
        """A forward pass raised: remove its requests and return their ids. What the ranks hold is unknown now."""
        for request_id in batch.request_ids:
            self.remove(request_id)
        for request in self._waiting:
            if request.request_id in self.swap:  # perhaps never copied
                self.swap.drop(request.request_id)
                request.num_computed_tokens = 0
        self._ranks.reset()
        return batch.request_ids

    def request(self, request_id: str) -> Request:
        """Return an unfinished request."""
        return self._requests[request_id]

    def forget_ranks(self) -> None:
        """The ranks know nothing any more: introduce everything anew."""
        self._ranks.reset()

    def check_integrity(self) -> None:
        """Recount all blocks; when no request is left none may be held. Raises RuntimeError with the numbers."""
        self.tables.check_integrity()
        self.swap.check_integrity()
        num_held = self.tables.pool.num_used + self.swap.num_blocks - self.swap.num_free
        if not self.has_work and num_held:
            raise RuntimeError(f"{num_held} blocks are held though no request is left: {self!r}")

    def _record(self, request: Request, token: SampledToken) -> Progress:
        request.output_token_ids.append(token.token_id)
        reason = request.finish_reason(self.limits.max_model_len)
        if reason is not None:
            self.remove(request.request_id)
        return Progress(request, token, reason)

    def _runnable(self, current: _Pass, sharing: list[Request]) -> Iterator[tuple[Request, int]]:
        """Yield running sequences in line order and how far they go, with their blocks; preempts from the far end."""
        position = 0
        while position < len(self._running) and current.tokens_left:
            request = self._running[position]
            position += 1
            if sharing and request not in sharing:
                continue
            end = self._end(request, current)
            while not self.tables.grow(request.request_id, request.num_tokens, end):
                if self._preempt_last(current) is request:
                    return
            yield request, end

    def _preempt_last(self, current: _Pass) -> Request:
        request = self._running.pop()
        table = self.tables.table(request.request_id)
        self.counters.preemptions += 1
        if request.num_computed_tokens and self.swap.has_room(table):
            current.swap_out += self.swap.take(request.request_id, table)
            self.counters.swaps += 1
        else:
            request.num_computed_tokens = 0
        self.tables.free(request.request_id)
        self._ranks.release(request.request_id)
        insort(self._waiting, request, key=_in_line)
        return request

    def _admissible(self, current: _Pass) -> Iterator[tuple[Request, int]]:
        """Move waiting sequences to running while a place and their blocks are free; the head is never overtaken."""
        while self._waiting and current.tokens_left and current.spare_logit_rows:
            request = self._waiting[0]
            if request.shortage is not None and not self.tables.has_eased(request.shortage):
                return
            current.spare_logit_rows -= 1
            request.shortage = self._admit(request, current)
            if request.shortage is not None:
                return
            insort(self._running, self._waiting.pop(0), key=_in_line)
            if request.first_scheduled_s is None:
                request.first_scheduled_s = self._clock()
            yield request, self._end(request, current)

    def _admit(self, request: Request, current: _Pass) -> Shortage | None:
        """Give a waiting sequence its blocks, or say why not: from host memory, or beginning with a known prefix."""
        if request.request_id in self.swap:
            shape = self.swap.shape(request.request_id)
            table = self.tables.restore(request.request_id, shape, request.num_tokens, self._end(request, current))
            if table is None:
                return self.tables.shortage()
            current.swap_in += self.swap.give(request.request_id, table)
            return None
        prefix = self._find_prefix(request)
        request.num_computed_tokens = prefix.num_tokens
        end = self._end(request, current)
        if not self.tables.admit(request.request_id, prefix, request.num_tokens, end):
            request.num_computed_tokens = 0
            return self.tables.shortage(prefix)
        if request.first_scheduled_s is None:
            request.num_cached_tokens = min(prefix.num_tokens, request.num_prompt_tokens)
            self.counters.prefix_queries += request.num_tokens
            self.counters.prefix_hits += prefix.num_tokens
        return None

    def _find_prefix(self, request: Request) -> Prefix:
        """Return what of the sequence is known; its last token is always computed, for its logits."""
        hashes = () if request.wants_prompt_logprobs else self._hashes(request, request.num_tokens - 1)
        return self.tables.find_prefix(hashes, request.num_tokens - 1)

    def _hashes(self, request: Request, num_tokens: int) -> Sequence[BlockHash]:
        if not self.limits.caches_prefixes:
            return ()
        return request.block_hashes(num_tokens, self.tables.layout.block_size)

    def _end(self, request: Request, current: _Pass) -> int:
        """Return how far the request goes in this pass."""
        start = request.num_computed_tokens
        end = min(request.num_tokens, start + current.tokens_left)
        if request.wants_prompt_logprobs and start < request.num_prompt_tokens:  # each of its rows gets logits
            end = min(end, start + 1 + current.spare_logit_rows)
        return end

    def _append(self, current: _Pass, request: Request, end: int) -> None:
        """Put the request's next tokens into the pass and take them off its budgets."""
        new = self._ranks.introduce(request)
        if new is not None:
            current.new.append(new)
        scheduled = self._ranks.schedule(request, self.tables.table(request.request_id), end)
        current.sequences.append(scheduled)
        num_tokens = end - request.num_computed_tokens
        current.tokens_left -= num_tokens
        if request.wants_prompt_logprobs and scheduled.start < request.num_prompt_tokens:
            current.spare_logit_rows -= num_tokens - 1
