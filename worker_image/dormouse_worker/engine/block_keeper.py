"""Lets KV blocks outlive the engine: reads a request's beginning from a store before it is computed, writes behind.

    read     a request that arrives waits, as one does for its grammar, while a thread reads; what was read becomes a
             known prefix of the pool (`turn`, between passes), and the request is admitted like any other
    written  cached blocks: when they make room for others, whenever nothing runs, and before their memory goes

A pass never waits for the disk: what finds no room on its way there is not kept. What is on disk is a copy; the pool
alone says which block holds what.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from dormouse_worker.common.ipc import StoreCounts
from dormouse_worker.engine.block_pool import Key
from dormouse_worker.engine.block_tables import BlockTables
from dormouse_worker.engine.neighbours import Neighbours
from dormouse_worker.engine.prefix import BlockHash
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.restore_plan import Rates, plan_restore, unknown_hashes
from dormouse_worker.engine.store_threads import Chunk, Reading, StoreThreads, name_of
from dormouse_worker.kv_store.interface import Block, BlockStore, Miss

logger = logging.getLogger(__name__)

PATIENCE = 2.0  # times what computing takes: so long a request waits for the store
LEAST_PATIENCE_S, MOST_PATIENCE_S = 1.0, 30.0
MIN_MEASURED_TOKENS = 64  # a smaller pass is none over prompts


_NOTHING = StoreCounts()


class BlockCopier(Protocol):
    """Who has the cache: its blocks' bytes are the same on every device."""

    def read_blocks(self, block_ids: Sequence[int]) -> Sequence[memoryview]:
        """Return copies of the blocks, each of the size of one."""

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        """Fill the blocks; `data` are theirs behind each other."""


class NoKeeper:
    """An engine without a store. What `BlockKeeper` does, and nothing of it."""

    def begin(self, request: Request) -> None:
        """See `BlockKeeper`."""

    def cancel(self, request_ids: Iterable[str]) -> None:
        """See `BlockKeeper`."""

    def turn(self) -> None:
        """See `BlockKeeper`."""

    def save_evicted(self) -> None:
        """See `BlockKeeper`."""

    def note_pass(self, num_tokens: int, seconds: float) -> None:
        """See `BlockKeeper`."""

    def forget(self, request: Request) -> None:
        """See `BlockKeeper`."""

    def clear(self) -> None:
        """See `BlockKeeper`."""

    def save_some(self) -> None:
        """See `BlockKeeper`."""

    def save_all(self, timeout_s: float) -> None:
        """See `BlockKeeper`."""

    def take_counts(self) -> StoreCounts | None:
        """See `BlockKeeper`."""


class BlockKeeper(NoKeeper):
    """Owns what is on its way between one engine's pool and a store."""

    def __init__(
        self,
        store: BlockStore,
        tables: BlockTables,
        copier: BlockCopier,
        block_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        """`block_bytes` = of one of the pool's blocks."""
        self._store, self._tables, self._copier, self._clock = store, tables, copier, clock
        self._pool = tables.pool
        self._block_bytes = block_bytes
        self._threads = StoreThreads(store, block_bytes, clock)
        self._neighbours = Neighbours(store, len(tables.layout.windows), clock)
        self._rates = Rates()
        self._capacity = store.capacity(block_bytes)
        self._saved_generation = -1  # of the pool, when all that it knew was saved, or what the store takes of it
        self._saving = -1, 0  # a generation, and how many of its blocks were given to the store
        self._readings: dict[str, Reading] = {}
        self._late: Reading | None = None  # while the thread is in it nobody else asks
        self._counts = _NOTHING
        self._misses: Counter[str] = Counter()
        self._pool.keeps_evicted = True

    def __repr__(self) -> str:
        return f"BlockKeeper({self._store!r}, {len(self._readings)} readings, {self._threads!r})"

    def begin(self, request: Request) -> None:
        """Read what of a new request's beginning is in the store, if that is cheaper than computing it.

        What it does not know of may be there by now: the request waits until it has been asked.
        """
        if request.wants_prompt_logprobs:
            return
        if self._neighbours.may_know_more and (hashes := self._unknown_hashes(request)):
            recompute_s = self._rates.recompute_s(len(hashes) * self._tables.layout.block_size)
            self._neighbours.ask(request, hashes, recompute_s)
        else:
            self._restore(request)

    def _unknown_hashes(self, request: Request) -> Sequence[BlockHash]:
        layout, last = self._tables.layout, request.num_tokens - 1
        hashes = request.block_hashes(last, layout.block_size)
        return unknown_hashes(layout, hashes, last, lambda key: self._is_in_pool(key) or self._is_in_store(key))

    def _restore(self, request: Request) -> None:
        if self._late is not None and not self._late.is_read:
            return
        layout, last = self._tables.layout, request.num_tokens - 1
        hashes = request.block_hashes(last, layout.block_size)
        keys = plan_restore(layout, hashes, last, in_pool=self._is_in_pool, in_store=self._is_in_store)
        if not keys or len(keys) > self._pool.num_available:
            return
        num_tokens = len(keys) * layout.block_size // len(layout.windows)
        num_bytes = len(keys) * self._block_bytes
        waiting_bytes = sum(reading.num_bytes for reading in self._readings.values())
        if self._rates.is_worth_reading(num_tokens, num_bytes + waiting_bytes):
            patience_s = PATIENCE * self._rates.recompute_s(num_tokens) or MOST_PATIENCE_S
            deadline_s = self._clock() + min(MOST_PATIENCE_S, max(LEAST_PATIENCE_S, patience_s))
            reading = Reading(keys, num_bytes, deadline_s)
            self._readings[request.request_id] = request.restore = reading
            self._threads.read(reading, self._rates.note_read)

    def cancel(self, request_ids: Iterable[str]) -> None:
        """These requests have ended."""
        request_ids = list(request_ids)
        self._neighbours.cancel(request_ids)
        for request_id in request_ids:
            if (reading := self._readings.pop(request_id, None)) is not None:
                reading.give_up()

    def turn(self) -> None:
        """Take what was found, read and written since; between two passes."""
        for question in self._neighbours.take_answered():
            if question.is_given_up:
                self._misses[Miss.LATE] += 1
            if question.num_found:
                self._count(found=question.num_found)
            self._restore(question.request)
        for request_id, reading in list(self._readings.items()):
            while (chunk := reading.take()) is not None:
                self._put_into_cache(chunk)
                chunk.close()
            if reading.is_done():
                self._end(request_id, reading)
            elif self._clock() > reading.deadline_s:
                reading.misses[Miss.LATE] += 1
                self._late = reading
                self._end(request_id, reading)
        self._take_written()

    def save_evicted(self) -> None:
        """Copy out what makes room for others; before the pass that overwrites it."""
        evicted = self._pool.take_evicted()
        if evicted:
            self._save(evicted[::-1], waits=False)

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

    def save_some(self) -> None:
        """Have cached blocks written, those used last first, as many as are taken at once; while nothing runs."""
        self._take_written()
        if self._saved_generation == self._pool.generation:
            return
        generation, num_given = self._saving
        num_given = num_given if generation == self._pool.generation else 0
        room = min(self._threads.room_for_writes(), self._capacity - num_given)
        unsaved = list(islice(self._unsaved(), room))
        self._save(unsaved, waits=False)
        num_given += len(unsaved)
        self._saving = self._pool.generation, num_given
        if len(unsaved) < room or num_given >= self._capacity:
            self._saved_generation = self._pool.generation

    def save_all(self, timeout_s: float) -> None:
        """Have all cached blocks written, and return when they are, or when it has taken so long."""
        deadline_s = self._clock() + timeout_s
        self._take_written()
        self._save(list(self._unsaved()), waits=True, deadline_s=deadline_s)
        while (left_s := deadline_s - self._clock()) > 0 and self._threads.has_writes:
            self._take_written(left_s)

    def take_counts(self) -> StoreCounts | None:
        """Return what was counted since the last call; None = nothing."""
        if not self._misses and self._counts is _NOTHING:
            return None
        counts = msgspec.structs.replace(self._counts, misses=dict(self._misses), stored_bytes=self._store.num_bytes)
        self._counts = _NOTHING
        self._misses.clear()
        return counts

    def _is_in_pool(self, key: Key) -> bool:
        return self._pool.find(key) is not None

    def _is_in_store(self, key: Key) -> bool:
        return self._store.has(name_of(key))

    def _put_into_cache(self, chunk: Chunk) -> None:
        """Let the pool know these blocks as cached ones; those that it knows by now, or has no room for, are left."""
        wanted = [index for index, key in enumerate(chunk.keys) if not self._is_in_pool(key)]
        if not wanted or len(wanted) > self._pool.num_available:
            return
        blocks = self._pool.allocate(len(wanted))
        self.save_evicted()
        size, data = self._block_bytes, memoryview(chunk.data)
        if len(wanted) < len(chunk.keys):
            data = memoryview(b"".join(data[index * size : (index + 1) * size] for index in wanted))
        self._copier.write_blocks(blocks, data[: len(wanted) * size])
        for block, index in zip(blocks, wanted, strict=True):
            self._pool.name(block, chunk.keys[index])
        self._pool.release(blocks)
        self._count(hits=len(wanted), read_bytes=len(wanted) * size)

    def _end(self, request_id: str, reading: Reading) -> None:
        del self._readings[request_id]
        reading.give_up()
        self._misses.update({str(miss): count for miss, count in reading.misses.items()})
        names = [name_of(key) for key in reading.keys]
        recompute_s = self._recompute_s()
        self._threads.run(lambda: self._store.touch(names, recompute_s))

    def _unsaved(self) -> Iterable[tuple[int, Key]]:
        """Yield cached blocks that are not in the store, those used last first: of so many as it holds.

        More of them would make room for each other, and those used last would go.
        """
        for block, key in islice(self._pool.iter_cached(), self._capacity):
            if not self._is_kept(key):
                yield block, key

    def _is_kept(self, key: Key) -> bool:
        name = name_of(key)
        return self._store.has(name) or self._threads.is_writing(name)

    def _save(self, blocks: Sequence[tuple[int, Key]], *, waits: bool, deadline_s: float = 0.0) -> None:
        """Copy blocks out and have them written; those without room are lost, or wait for it until the deadline."""
        left = [(block, key) for block, key in blocks if not self._is_kept(key)]
        while left:
            room = self._threads.room_for_writes()
            if not room and waits and (left_s := deadline_s - self._clock()) > 0:
                self._take_written(left_s)
                continue
            if not room:
                self._misses[str(Miss.LATE)] += len(left)
                return
            part, left = left[:room], left[room:]
            copies = self._copier.read_blocks([block for block, _ in part])
            kept = [Block(name_of(key), data) for (_, key), data in zip(part, copies, strict=True)]
            self._threads.write(kept, self._recompute_s())

    def _take_written(self, timeout_s: float = 0.0) -> None:
        for num_blocks, lost in self._threads.take_written(timeout_s):
            num_kept = num_blocks - sum(lost.values())
            self._count(writes=num_kept, written_bytes=num_kept * self._block_bytes)
            self._misses.update({str(miss): count for miss, count in lost.items()})
            if lost:
                self._saved_generation = self._pool.generation

    def _recompute_s(self) -> float:
        layout = self._tables.layout
        return self._rates.recompute_s(layout.block_size) / len(layout.windows)

    def _count(self, **counted: int) -> None:
        sums = {name: getattr(self._counts, name) + number for name, number in counted.items()}
        self._counts = msgspec.structs.replace(self._counts, **sums)
