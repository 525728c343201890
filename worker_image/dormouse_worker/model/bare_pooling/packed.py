"""Texts one behind the other, without padding, as the kernels read them.

rows       | text 0 | text 1 |   text 2   |     [T, hidden]
attention  keys and values are used where the maps put them, as a paged cache with blocks of one token
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import pointer
from dataclasses import dataclass

import numpy as np

from dormouse_worker.engine.pooling.batch import PooledSequence
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.scratch import Floats, address_of
from dormouse_worker.native import abi

STEP_OPERATIONS = 1 << 28  # of floating point, before a pass can stop: 1.5 ms on two cores
UNIT_ROWS = 64  # that the kernels' attention computes together


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a pass, as the kernels' attention reads them."""

    rows: slice
    batch: abi.Batch


class Packed:
    """The arrays of one pass, which lie still as long as this lives."""

    def __init__(self, texts: Sequence[PooledSequence]) -> None:
        lengths = np.array([text.num_tokens for text in texts], dtype=np.int64)
        self._starts: Ints = np.concatenate([[0], np.cumsum(lengths)])
        self._ends: Ints = np.repeat(lengths - 1, lengths)
        self._held: list[Ints] = []  # to which descriptions point
        self._tables = self._starts[:-1, None] + np.arange(lengths.max())
        self.token_ids: Ints = np.concatenate([np.asarray(text.token_ids, dtype=np.int64) for text in texts])
        self.positions: Ints = np.arange(self._starts[-1]) - np.repeat(self._starts[:-1], lengths)
        self.kinds = self._kinds(texts, lengths)

    def describe(self, width: int, window: int | None = None, *, is_causal: bool = False) -> list[Part]:
        """Return the pass as the kernels' attention reads it, in parts that take a step each.

        Queries have `width` numbers. A row sees its own text: what is less than a window away, None = all, and nothing
        behind it if it is causal.
        """
        longest = self._tables.shape[1]
        num_seen = longest if window is None else min(longest, 2 * window)
        most = max(1, STEP_OPERATIONS // (4 * width * num_seen * UNIT_ROWS)) * UNIT_ROWS
        seen = None if is_causal else self._seen_behind(window)
        count = len(self.positions)
        return [self._part(start, min(count, start + most), seen) for start in range(0, count, most)]

    def _part(self, start: int, end: int, seen: Ints | None) -> Part:
        """Return the rows [start, end): the texts of which there are some, and where each has its own."""
        first, last = (int(text) for text in np.searchsorted(self._starts, (start, end - 1), side="right") - 1)
        starts: Ints = np.clip(self._starts[first : last + 2], start, end) - start
        self._held.append(starts)
        group = abi.Group(block_tables=address_of(self._tables[first:]), num_columns=self._tables.shape[1])
        batch = abi.Batch(
            num_seqs=len(starts) - 1,
            num_tokens=end - start,
            block_size=1,
            query_starts=address_of(starts),
            positions=address_of(self.positions[start:]),
            groups=pointer(group),
            last_seen=None if seen is None else address_of(seen[start:]),
        )
        return Part(slice(start, end), batch)

    def _seen_behind(self, window: int | None) -> Ints:
        """Return up to which position each row sees."""
        seen: Ints = self._ends if window is None else np.minimum(self._ends, self.positions + (window - 1))
        self._held.append(seen)
        return seen

    def _kinds(self, texts: Sequence[PooledSequence], lengths: Ints) -> Ints | None:
        """Return 1 for each token of a pair's second text, else 0; None where there are no pairs."""
        seconds = np.array([text.second_start for text in texts], dtype=np.int64)
        if not seconds.any():
            return None
        begins = np.repeat(np.where(seconds > 0, seconds, lengths), lengths)
        kinds: Ints = (self.positions >= begins).astype(np.int64)
        return kinds


class Room:
    """Memory for the rows of a pass, which grows to the largest one."""

    def __init__(self) -> None:
        self._numbers: Floats = np.empty(0, dtype=np.float32)

    def rows(self, count: int, sizes: Sequence[int]) -> list[Floats]:
        """Return so many rows of each size, of which nothing is known."""
        if self._numbers.size < count * sum(sizes):
            self._numbers = np.empty(count * sum(sizes), dtype=np.float32)
        rows, start = [], 0
        for size in sizes:
            rows.append(self._numbers[start : start + count * size].reshape(count, size))
            start += count * size
        return rows


class Rooms:
    """Lends a room to each pass. The one that was given back last is kept: passes end in the order of a stack."""

    def __init__(self) -> None:
        self._kept: Room | None = None

    @contextmanager
    def lend(self) -> Iterator[Room]:
        """Yield one that nobody else has."""
        room, self._kept = self._kept or Room(), None
        try:
            yield room
        finally:
            self._kept = room
