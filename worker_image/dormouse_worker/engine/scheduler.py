"""Decides who computes what in the next forward pass. By priority, then first come, first served; prompts in chunks.

Each pass gives every running sequence its pending tokens (one while decoding, more where a grammar forced some, a chunk
of its prompt before) within a token budget, then admits waiting sequences into what is left. A sequence is admitted
with blocks for all tokens it has, so (windows apart) only decoding ever needs a further block. When none is left the
last running sequence in line is preempted: its blocks go to host memory if there is room, else they are freed and it is
computed anew; it waits in its old place in line. The first in line is never preempted, and one sequence always fits: so
there is always progress.
There is no aging: a steady stream of requests that go first starves those of a lower priority, as in vLLM.

With several batches in flight a request keeps its blocks until the last output it is in has come: an abort waits for
that, and so does whoever would preempt it. Ranks compute batches in their order.

A running sequence may have drafts behind its pending tokens: with rows, tokens and blocks that nobody else needs. Those
that are wrong leave keys and values behind that the next pass writes over; names are for tokens that were taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.admission import Admission
from dormouse_worker.engine.batch import Batch, Proposals, SampledToken, ScheduledSequence
from dormouse_worker.engine.block_tables import BlockTables
from dormouse_worker.engine.forward_pass import Counters, Limits, Pass, Progress
from dormouse_worker.engine.holdings import Holdings
from dormouse_worker.engine.images.encoder_cache import EncoderCache
from dormouse_worker.engine.images.turn import ImageTurn
from dormouse_worker.engine.in_flight import make_in_flight
from dormouse_worker.engine.placement import Placement
from dormouse_worker.engine.prompt_turns import PromptTurns
from dormouse_worker.engine.queues import Queues
from dormouse_worker.engine.rank_view import RankView
from dormouse_worker.engine.record import Run, record, runs_of
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.speculation.speculation import Speculation
from dormouse_worker.engine.speculation.turn import NO_DRAFTS, Drafting, DraftTurn
from dormouse_worker.engine.swap import SwapSpace


class Scheduler:
    """Owns the queues, and which tokens of whom the ranks compute next."""

    def __init__(
        self,
        tables: BlockTables,
        swap: SwapSpace,
        limits: Limits,
        clock: Callable[[], float],
        adapters: AdapterSlots | None = None,
        *,
        images: EncoderCache | None = None,
    ) -> None:
        most = tables.layout.most_blocks(limits.max_model_len, limits.max_num_batched_tokens)
        assert most <= tables.pool.num_blocks, "the longest sequence must fit alone"
        self.tables = tables
        self.swap = swap
        self.limits = limits
        self.counters = Counters()
        self.adapters = adapters or AdapterSlots()
        self.images = images or EncoderCache()
        self._placement = Placement(tables, swap, self.counters, caches_prefixes=limits.caches_prefixes)
        self._queues = Queues()
        self._admission = Admission(
            self._queues, self._placement, self.adapters, max_num_seqs=limits.max_num_seqs, clock=clock
        )
        self._ranks = RankView(tables.layout.block_size, len(tables.layout.windows))
        self._holdings = Holdings(
            self._queues, self._placement, self._ranks, adapters=self.adapters, images=self.images
        )
        self._turns = PromptTurns(limits.max_num_seqs)
        self._in_flight = make_in_flight(limits)
        self.speculation = Speculation(limits) if limits.max_draft_tokens else None

    def __repr__(self) -> str:
        return f"Scheduler(running={self.num_running}, waiting={self.num_waiting}, {self._placement!r})"

    @property
    def num_running(self) -> int:
        """Return how many sequences hold blocks."""
        return len(self._queues.running)

    @property
    def num_waiting(self) -> int:
        """Return how many sequences wait for their first or next admission."""
        return len(self._queues.waiting)

    @property
    def has_work(self) -> bool:
        """Return whether any request is unfinished."""
        return bool(self._queues.by_id)

    @property
    def request_ids(self) -> list[str]:
        """Return every request that gets further tokens, running ones first."""
        return self._queues.request_ids

    @property
    def departing(self) -> list[Request]:
        """Return who of the running is to go on elsewhere."""
        return self._queues.departing

    def add(self, request: Request) -> None:
        """Queue a request whose id is not known yet and whose tokens leave room for another."""
        assert request.num_tokens < self.limits.max_model_len
        self._queues.add(request)
        self.adapters.begin(request.adapter)

    def remove(self, request_id: str) -> bool:
        """Forget a request and free its blocks, once it is not in flight; False if it is not known."""
        request = self._queues.by_id.get(request_id)
        if request is None or request.is_leaving:
            return False
        self._let_go(request)
        return True

    def is_leaving(self, request_id: str) -> bool:
        """Return whether a request ended or was removed while a batch with it has not come back."""
        request = self._queues.by_id.get(request_id)
        return request is not None and request.is_leaving

    def schedule(self) -> Batch | None:
        """Choose the next forward pass; None if nothing is to be done before an output has come.

        Must be followed by `commit` or `fail`, in order where several are in flight.
        """
        current = self._fill()
        if current.images.waiting and not current.sequences:  # those beside whom they wait were preempted
            current = self._fill()
        return self._batch(current) if current.sequences else None

    def _fill(self) -> Pass:
        """Put in whatever goes into the next pass; perhaps nothing."""
        chosen = self._in_flight.choose(self._queues.running)
        chosen = (sharing := self._turns.take(chosen)) or chosen
        most = self.limits.max_num_batched_tokens
        images = ImageTurn(self.images, most, self._queues.running if self.limits.max_batches_under_way == 1 else ())
        current = Pass(most, self.limits.max_num_seqs - len(chosen), images, not sharing)
        current.spare_draft_rows = self.limits.max_num_seqs - self.num_running - self.num_waiting
        self._schedule_running(current, chosen)
        if current.may_admit:
            self._schedule_waiting(current)
        return current

    def commit(self, batch: Batch, sampled: list[SampledToken]) -> list[Progress]:
        """Record what a forward pass computed; lets go the requests that are complete, and those removed meanwhile."""
        self._in_flight.arrive(batch)
        by_id, fills_block = self._queues.by_id, self.tables.layout.fills_block
        for sequence in batch.sequences:
            request = by_id[sequence.request_id]
            if request.is_leaving:
                self._let_go(request)
            elif fills_block(sequence.start, sequence.num_known):
                self._placement.commit(request, sequence.num_known)
        return [
            self._record(known, run)
            for run in (runs_of(sampled) if self.speculation else zip(sampled))
            if (known := by_id.get(run[0].request_id)) is not None and not known.is_leaving
        ]

    def fail(self, batch: Batch, later: Sequence[Batch] = ()) -> list[str]:
        """A forward pass raised: remove its requests and return their ids. What the ranks hold is unknown now.

        `later` were in flight behind it: what they computed counts for nothing, and is computed anew.
        """
        for each in (batch, *later):
            self._in_flight.arrive(each)
        failed = [request_id for request_id in batch.request_ids if not self.is_leaving(request_id)]
        for request_id in batch.request_ids:
            self._holdings.drop(self._queues.by_id[request_id])
        for request_id in dict.fromkeys(request_id for each in later for request_id in each.request_ids):
            if request_id in self._queues.by_id:
                self._holdings.start_over(self._queues.by_id[request_id])
        self._placement.forget(self._queues.waiting)
        self.forget_ranks()
        return failed

    def request(self, request_id: str) -> Request:
        """Return an unfinished request."""
        return self._queues.by_id[request_id]

    def hear(self, batch: Batch, proposals: Proposals | None) -> None:
        """Keep what the model beside thinks comes behind a pass that was committed."""
        if self.speculation is not None:
            self.speculation.hear(batch, proposals, self._queues.by_id)

    def with_images(self, why: Mapping[bytes, str]) -> dict[str, str]:
        """Forget images that cannot be encoded, and why; return which requests have one of them, with the reason."""
        for digest in why:
            self.images.forget(digest)
        return self._queues.with_images(why)

    def wait_for_held(self, timeout_s: float) -> None:
        """Wait so long at most for what the first request that is held waits for, if there is one."""
        self._queues.wait_for_held(timeout_s)

    def forget_ranks(self) -> None:
        """The ranks know nothing any more: introduce everything anew."""
        self._holdings.forget_ranks()

    def check_integrity(self) -> None:
        """Recount all blocks; when no request is left none may be held. Raises RuntimeError with the numbers."""
        self._holdings.check_integrity()

    def _batch(self, current: Pass) -> Batch:
        self.adapters.line_up(current.sequences, self._queues.by_id)
        moves = self.swap.moves_out(), current.swap_in
        batch = Batch(
            *self._ranks.take_released(),
            *moves,
            tuple(current.new),
            tuple(current.sequences),
            lora_moves=self.adapters.take_moves(),
            ahead=current.images.begin(),  # for which others may make way
            num_image_rows=current.images.num_prompt_rows,
            freed_images=self.images.take_freed(),
            encode=tuple(current.images.encode),
            known_images=self.images.take_known(),
        )
        self._in_flight.depart(batch)
        return batch

    def _let_go(self, request: Request) -> None:
        """Drop a request that gets no further token, now or once no batch with it is in flight."""
        if request.request_id in self._in_flight:
            request.is_leaving = True
        else:
            self._holdings.drop(request)

    def _record(self, request: Request, run: Run) -> Progress:
        progress = record(request, run, self.limits.max_model_len)
        if self.speculation is not None:
            self.speculation.note(progress, num_right=len(run) - 1)
        end = request.num_computed_tokens
        if len(run) > 1 and self.tables.layout.fills_block(end - len(run) + 1, end):  # drafts are in the cache, too
            self._placement.commit(request, end)
        if progress.finish_reason is not None:
            self._let_go(request)
        return progress

    def _schedule_running(self, current: Pass, chosen: list[Request]) -> None:
        """Put the chosen into the pass in line order, each with its blocks; preempts from the line's far end."""
        schedule_decode = self._ranks.schedule_decode  # all that nearly every sequence needs
        turn = None
        if self.speculation is not None:
            turn = DraftTurn(
                self.speculation, self.tables, current, num_chosen=len(chosen), num_running=self.num_running
            )
        position = 0
        while position < len(chosen) and current.tokens_left:
            request = chosen[position]
            position += 1
            drafting = NO_DRAFTS if turn is None else turn.draft(request, current)
            scheduled = None if request.awaits_images else schedule_decode(request, *drafting)
            if scheduled is None:
                end = current.end_of(request)
                if end == request.num_computed_tokens:  # an image of it waits for others
                    continue
                if not self._grow(current, request, end, chosen):
                    return
                scheduled = self._introduce(current, request, end, drafting)
            self._append(current, request, scheduled)

    def _grow(self, current: Pass, request: Request, end: int, chosen: list[Request]) -> bool:
        """Give a running sequence the blocks up to `end`, preempting others for them; False if it goes no further."""
        while not self.tables.grow(request.request_id, request.num_tokens, end):
            current.may_admit = False
            if self._queues.running[-1].request_id in self._in_flight:  # wait for it
                return False
            last = self._holdings.preempt_last()
            if last is chosen[-1]:
                chosen.pop()
            if last is request:
                return False
        return True

    def _schedule_waiting(self, current: Pass) -> None:
        """Admit waiting sequences while there is room for them."""
        most = self._in_flight.share(min(self.limits.max_num_seqs, self.num_running + self.num_waiting))
        while len(current.sequences) < most and (request := self._admission.admit_next(current)) is not None:
            self._append(current, request, self._introduce(current, request, current.end_of(request)))

    def _introduce(
        self, current: Pass, request: Request, end: int, drafting: Drafting = NO_DRAFTS
    ) -> ScheduledSequence:
        """Return the request's tokens up to `end`, and drafts, with what the ranks do not know of it yet."""
        new = self._ranks.introduce(request)
        if new is not None:
            current.new.append(new)
        # Others may share it in this very pass: a layer stores all of the pass before any of it attends.
        self._placement.name(request, end)
        return self._ranks.schedule(request, self.tables.table(request.request_id), end, *drafting)

    def _append(self, current: Pass, request: Request, scheduled: ScheduledSequence) -> None:
        """Put the request's next tokens into the pass."""
        current.take(request, scheduled)
        num_drafts = len(scheduled.draft_token_ids)
        request.advance(scheduled.end - num_drafts, samples=scheduled.samples, num_drafts=num_drafts)
