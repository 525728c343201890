"""Writes cached blocks to a store: when they make room for others, whenever nothing runs, before their memory goes.

Those of streams that leave are written while they are used: others read them where the streams go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Protocol

from dormouse_worker.engine.block_pool import Key
from dormouse_worker.engine.block_tables import BlockTables
from dormouse_worker.engine.hand_over import HandOver
from dormouse_worker.engine.neighbours import Neighbours
from dormouse_worker.engine.restore_plan import Rates
from dormouse_worker.engine.store_tally import StoreTally
from dormouse_worker.engine.store_threads import StoreThreads, name_of
from dormouse_worker.kv_store.interface import Block, BlockStore, Miss

HAND_ON_BYTES = 8 << 20  # copied out between two passes, while streams that leave go on
HAND_OVER_S = 2.0  # at most, before those that were given up are told
LOOK_S = 0.02  # for whether anybody is there who could read it


class BlockReader(Protocol):
    """Who has the cache."""

    def read_blocks(self, block_ids: Sequence[int]) -> Sequence[memoryview]:
        """Return copies of the blocks, each of the size of one."""


class BlockWriter:
    """Owns what is on its way from one engine's pool to the store."""

    def __init__(  # noqa: PLR0913  what the keeper has; nobody else makes one
        self,
        store: BlockStore,
        tables: BlockTables,
        cache: BlockReader,
        *,
        threads: StoreThreads,
        neighbours: Neighbours,
        rates: Rates,
        tally: StoreTally,
        clock: Callable[[], float],
    ) -> None:
        self._store, self._cache, self._threads, self._neighbours = store, cache, threads, neighbours
        self._rates, self._tally, self._clock = rates, tally, clock
        self._layout, self._pool = tables.layout, tables.pool
        self._hand_over = HandOver(tables.pool)
        self._capacity = store.capacity(threads.block_bytes)
        self._saved_generation = -1  # of the pool, when all that it knew was saved, or what the store takes of it
        self._has_peers = False  # others can ask for what is in the store
        self._saving = -1, 0  # a generation, and how many of its blocks were given to the store
        self._pool.keeps_evicted = True

    def __repr__(self) -> str:
        return f"BlockWriter({self._threads!r}, {self._hand_over!r})"

    @property
    def recompute_s(self) -> float:
        """Return what computing a block takes; 0 = not known."""
        return self._rates.recompute_s(self._layout.block_size) / len(self._layout.windows)

    def save_evicted(self) -> None:
        """Copy out what makes room for others; before the pass that overwrites it."""
        evicted = self._pool.take_evicted()
        if evicted:
            self._save(evicted[::-1], waits=False)

    def save_some(self) -> None:
        """Have cached blocks written, those used last first, as many as are taken at once; while nothing runs."""
        self.take_written()
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
        self.take_written()
        self._save_until(list(self._unsaved()), deadline_s)

    def leave(self, *, is_leaving: bool, to_peers: bool) -> None:
        """Streams leave from now on, or stay."""
        self._has_peers = to_peers
        if is_leaving:
            self._neighbours.look_around()
            self._hand_over.begin()
        else:
            self._hand_over.end()

    def hand_on(self) -> None:
        """Have some of what leaving streams have written; between passes, with none under way."""
        if len(self._hand_over) and self._has_readers():
            self.take_written()
            self.write_some(self._hand_over.take(self.room_to_hand_on(), self.is_kept))

    def room_to_hand_on(self) -> int:
        """Return how many blocks are copied out between these two passes at most."""
        return min(self._threads.room_for_writes(), max(1, HAND_ON_BYTES // self._threads.block_bytes))

    def write_some(self, blocks: Sequence[tuple[int, Key]]) -> None:
        """Have blocks written, for which there is room, so that others read them."""
        self._save(blocks, waits=False)
        self._tally.count(handed_over=len(blocks))

    def is_writing(self, key: Key) -> bool:
        """Return whether the block is on its way to the store."""
        return self._threads.is_writing(name_of(key))

    def hand_over(self) -> None:
        """Have the rest of it written before streams that were given up are told, if that pays for who reads it."""
        left = self._hand_over.take(len(self._hand_over), self.is_kept)
        if self._is_worth_handing_over(len(left)) and self._has_readers(LOOK_S):
            self._tally.count(handed_over=len(left))
            self._save_until(left, self._clock() + HAND_OVER_S)

    def take_written(self, timeout_s: float = 0.0) -> None:
        """Note what was written since."""
        for num_blocks, lost in self._threads.take_written(timeout_s):
            num_kept = num_blocks - sum(lost.values())
            self._tally.count(writes=num_kept, written_bytes=num_kept * self._threads.block_bytes)
            for miss, count in lost.items():
                self._tally.miss(miss, count)
            if lost:
                self._saved_generation = self._pool.generation

    def _has_readers(self, timeout_s: float = 0.0) -> bool:
        return self._has_peers or self._neighbours.are_there(timeout_s)

    def _unsaved(self) -> Iterable[tuple[int, Key]]:
        """Yield cached blocks that are not in the store, those used last first: of so many as it holds.

        More of them would make room for each other, and those used last would go.
        """
        for block, key in islice(self._pool.iter_cached(), self._capacity):
            if not self.is_kept(key):
                yield block, key

    def is_kept(self, key: Key) -> bool:
        """Return whether the store has the block, or will."""
        name = name_of(key)
        return self._store.has(name) or self._threads.is_writing(name)

    def _is_worth_handing_over(self, num_blocks: int) -> bool:
        num_tokens = num_blocks * self._layout.block_size // len(self._layout.windows)
        return self._rates.is_worth_handing_over(num_tokens, num_blocks * self._threads.block_bytes)

    def _save_until(self, blocks: Sequence[tuple[int, Key]], deadline_s: float) -> None:
        """Have blocks written, and return when all that is under way is, or at the deadline."""
        self._save(blocks, waits=True, deadline_s=deadline_s)
        while (left_s := deadline_s - self._clock()) > 0 and self._threads.has_writes:
            self.take_written(left_s)

    def _save(self, blocks: Sequence[tuple[int, Key]], *, waits: bool, deadline_s: float = 0.0) -> None:
        """Copy blocks out and have them written; those without room are lost, or wait for it until the deadline."""
        left = [(block, key) for block, key in blocks if not self.is_kept(key)]
        while left:
            room = self._threads.room_for_writes()
            if not room and waits and (left_s := deadline_s - self._clock()) > 0:
                self.take_written(left_s)
                continue
            if not room:
                self._tally.miss(Miss.LATE, len(left))
                return
            part, left = left[:room], left[room:]
            copies = self._cache.read_blocks([block for block, _ in part])
            kept = [Block(name_of(key), data) for (_, key), data in zip(part, copies, strict=True)]
            self._threads.write(kept, self.recompute_s)
