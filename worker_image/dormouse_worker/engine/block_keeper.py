"""Lets KV blocks outlive the engine: reads a request's beginning from a store before it is computed, writes behind.

    read     a request that arrives waits, as one does for its grammar, while a thread reads; what was read becomes a
             known prefix of the pool (`turn`, between passes), and the request is admitted like any other
    written  cached blocks: when they make room for others, whenever nothing runs, and before their memory goes

A pass never waits for the disk: what finds no room on its way there is not kept. What is on disk is a copy; the pool
alone says which block holds what.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from dormouse_worker.common.ipc import StoreCounts
from dormouse_worker.common.kv_source import KvSource
from dormouse_worker.engine.block_pool import Key
from dormouse_worker.engine.block_tables import BlockTables
from dormouse_worker.engine.block_writer import BlockReader, BlockWriter
from dormouse_worker.engine.departures import Departures
from dormouse_worker.engine.neighbours import Neighbours, Question
from dormouse_worker.engine.no_keeper import NoKeeper
from dormouse_worker.engine.prefix import BlockHash
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.restore_plan import Rates, plan_restore, unknown_hashes
from dormouse_worker.engine.sources import OpenPeer, Source
from dormouse_worker.engine.store_tally import StoreTally
from dormouse_worker.engine.store_threads import Chunk, Reading, StoreThreads, name_of
from dormouse_worker.kv_store.interface import BlockStore, Miss

logger = logging.getLogger(__name__)

PATIENCE = 2.0  # times what computing takes: so long a request waits for the store
LEAST_PATIENCE_S, MOST_PATIENCE_S = 1.0, 30.0
MIN_MEASURED_TOKENS = 64  # a smaller pass is none over prompts


class BlockCopier(BlockReader, Protocol):
    """Who has the cache: its blocks' bytes are the same on every device."""

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        """Fill the blocks; `data` are theirs behind each other."""


class BlockKeeper(NoKeeper):
    """Owns what is on its way between one engine's pool and a store."""

    def __init__(
        self,
        store: BlockStore,
        tables: BlockTables,
        copier: BlockCopier,
        block_bytes: int,
        clock: Callable[[], float],
        *,
        open_peer: OpenPeer | None = None,
    ) -> None:
        """`block_bytes` = of one of the pool's blocks. Without `open_peer` nothing is asked of other workers."""
        self._store, self._tables, self._copier, self._clock = store, tables, copier, clock
        self._pool = tables.pool
        self._block_bytes = block_bytes
        self._rates, self._tally = Rates(), StoreTally()
        self._threads = StoreThreads(store, block_bytes, clock, self._rates.note_write)
        self._neighbours = Neighbours(store, len(tables.layout.windows), clock)
        self._writer = BlockWriter(
            store,
            tables,
            copier,
            threads=self._threads,
            neighbours=self._neighbours,
            rates=self._rates,
            tally=self._tally,
            clock=clock,
        )
        self._departures = Departures(tables, self._writer, clock)
        self._own, self._open_peer = Source(store), open_peer
        self._readings: dict[str, Reading] = {}
        self._late: Reading | None = None  # while the thread is in it nobody else asks

    def __repr__(self) -> str:
        return f"BlockKeeper({self._store!r}, {len(self._readings)} readings, {self._threads!r})"

    def begin(self, request: Request, kv_source: KvSource | None = None) -> None:
        """Read what of a new request's beginning is in the store, if that is cheaper than computing it.

        What it does not know of may be there by now, or at the worker that had the request: it waits until that has
        been asked.
        """
        if request.wants_prompt_logprobs:
            return
        may_be_elsewhere = kv_source is not None or self._neighbours.may_know_more
        hashes = self._unknown_hashes(request, self._own) if may_be_elsewhere else ()
        num_tokens = len(hashes) * self._tables.layout.block_size
        recompute_s = self._rates.recompute_s(num_tokens)
        if hashes and kv_source is not None and (source := self._peer_of(kv_source, num_tokens)) is not None:
            self._neighbours.ask_peer(request, hashes, recompute_s, source)
        elif hashes and self._neighbours.may_know_more:
            self._neighbours.ask(request, hashes, recompute_s)
        else:
            self._restore(request, self._own)

    def _peer_of(self, kv_source: KvSource, num_tokens: int) -> Source | None:
        """Return where to ask for blocks of so many tokens, if that may be cheaper than computing them."""
        num_bytes = num_tokens // self._tables.layout.block_size * len(self._tables.layout.windows) * self._block_bytes
        if self._open_peer is None or not self._rates.is_worth_fetching(num_tokens, num_bytes):
            return None
        return self._open_peer(kv_source)

    def _unknown_hashes(self, request: Request, source: Source) -> Sequence[BlockHash]:
        layout, last = self._tables.layout, request.num_tokens - 1
        hashes = request.block_hashes(last, layout.block_size)
        return unknown_hashes(layout, hashes, last, lambda key: self._is_in_pool(key) or source.store.has(name_of(key)))

    def _take_answer(self, question: Question) -> None:
        """Read what was found; what a stream that moved here has not brought is computed.

        Nobody had written that, or not in time. A worker that did not answer is not asked for blocks either.
        """
        request, source = question.request, question.source
        if question.is_given_up:
            self._tally.miss(Miss.LATE)
            source.close()
            source = self._own
        if question.num_found:
            self._tally.count(found=question.num_found)
        if request.output_token_ids and (lost := self._unknown_hashes(request, source)):
            self._tally.miss(Miss.ABSENT, len(lost))
        self._restore(request, source)
        if request.request_id not in self._readings:
            source.close()

    def _restore(self, request: Request, source: Source) -> None:
        if source.is_own and self._late is not None and not self._late.is_read:
            return
        layout, last = self._tables.layout, request.num_tokens - 1
        hashes = request.block_hashes(last, layout.block_size)
        has = source.store.has
        keys = plan_restore(layout, hashes, last, in_pool=self._is_in_pool, in_store=lambda key: has(name_of(key)))
        if len(keys) > self._pool.num_available:
            self._tally.miss(Miss.NO_ROOM, len(keys))
            return
        if not keys:
            return
        num_tokens = len(keys) * layout.block_size // len(layout.windows)
        num_bytes = len(keys) * self._block_bytes
        waiting_bytes = sum(reading.num_bytes for reading in self._readings.values())
        is_worth = self._rates.is_worth_reading if source.is_own else self._rates.is_worth_fetching
        if is_worth(num_tokens, num_bytes + waiting_bytes):
            patience_s = PATIENCE * self._rates.recompute_s(num_tokens) or MOST_PATIENCE_S
            deadline_s = self._clock() + min(MOST_PATIENCE_S, max(LEAST_PATIENCE_S, patience_s))
            reading = Reading(keys, num_bytes, deadline_s, source, request)
            self._readings[request.request_id] = request.restore = reading
            self._threads.read(reading, self._rates.note_read if source.is_own else self._rates.note_fetch)

    def cancel(self, request_ids: Iterable[str]) -> None:
        """These requests have ended."""
        request_ids = list(request_ids)
        self._neighbours.cancel(request_ids)
        for request_id in request_ids:
            if (reading := self._readings.pop(request_id, None)) is not None:
                reading.give_up()
                reading.source.close()

    def turn(self) -> None:
        """Take what was found, read and written since; between two passes."""
        for question in self._neighbours.take_answered():
            self._take_answer(question)
        for request_id, reading in list(self._readings.items()):
            while (chunk := reading.take()) is not None:
                num_taken = self._put_into_cache(chunk, reading.owner)
                if not reading.source.is_own:
                    self._tally.count(fetched=num_taken)
                chunk.close()
            if reading.is_done():
                self._end(request_id, reading)
            elif self._clock() > reading.deadline_s:
                reading.misses[Miss.LATE] += 1
                self._late = reading if reading.source.is_own else self._late
                self._end(request_id, reading)
        self._writer.take_written()

    def note_pass(self, num_tokens: int, seconds: float) -> None:
        """A pass took so long."""
        if num_tokens >= MIN_MEASURED_TOKENS:
            self._rates.note_pass(num_tokens, seconds)

    def forget(self, request: Request) -> None:
        """What was computed of this request may be no numbers: nobody shall begin with it."""
        layout = self._tables.layout
        hashes = request.block_hashes(request.num_known_tokens, layout.block_size)
        names = [name_of((group, each)) for each in hashes for group in range(len(layout.windows))]
        self._threads.run(lambda: self._store.drop(names))

    def clear(self) -> None:
        """Forget every block, and those that are being read."""
        self.cancel([*self._readings, *self._neighbours.request_ids])
        self._pool.take_evicted()
        self._threads.run(self._store.clear)

    def save_evicted(self) -> None:
        """Copy out what makes room for others; before the pass that overwrites it."""
        self._writer.save_evicted()

    def save_some(self) -> None:
        """Have cached blocks written, as many as are taken at once; while nothing runs."""
        self._writer.save_some()

    def save_all(self, timeout_s: float) -> None:
        """Have all cached blocks written, and return when they are, or when it has taken so long."""
        self._writer.save_all(timeout_s)

    def leave(self, *, is_leaving: bool, to_peers: bool = False) -> None:
        """Streams leave from now on, or stay: where they go others may read what they have here."""
        self._writer.leave(is_leaving=is_leaving, to_peers=to_peers)

    def hand_on(self, departing: Sequence[Request] = ()) -> list[str]:
        """Have some of what leaving streams have written; between passes, with none under way.

        Return whose blocks are there of those that depart once their prompts are computed.
        """
        self._writer.hand_on()
        return self._departures.turn(departing)

    def hand_over(self) -> None:
        """Have the rest of it written, shortly, before streams that were given up are told."""
        self._writer.hand_over()

    def take_counts(self) -> StoreCounts | None:
        """Return what was counted since the last call; None = nothing."""
        return self._tally.take(self._store.num_bytes)

    def _is_in_pool(self, key: Key) -> bool:
        return self._pool.find(key) is not None

    def _put_into_cache(self, chunk: Chunk, owner: Any) -> int:
        """Let the pool know these blocks as cached ones; those that it knows by now, or has no room for, are left.

        Return how many it took.
        """
        wanted = [index for index, key in enumerate(chunk.keys) if not self._is_in_pool(key)]
        if not wanted or len(wanted) > self._pool.num_available:
            return 0
        blocks = self._pool.allocate(len(wanted))
        self._writer.save_evicted()
        size, data = self._block_bytes, memoryview(chunk.data)
        if len(wanted) < len(chunk.keys):
            data = memoryview(b"".join(data[index * size : (index + 1) * size] for index in wanted))
        self._copier.write_blocks(blocks, data[: len(wanted) * size])
        for block, index in zip(blocks, wanted, strict=True):
            self._pool.name(block, chunk.keys[index], owner)
        self._pool.release(blocks)
        self._tally.count(hits=len(wanted), read_bytes=len(wanted) * size)
        return len(wanted)

    def _end(self, request_id: str, reading: Reading) -> None:
        del self._readings[request_id]
        reading.give_up()
        reading.source.close()
        for miss, count in reading.misses.items():
            self._tally.miss(miss, count)
        names = [name_of(key) for key in reading.keys]
        recompute_s = self._writer.recompute_s
        self._threads.run(lambda: self._store.touch(names, recompute_s))
