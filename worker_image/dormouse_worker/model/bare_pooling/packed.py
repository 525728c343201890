"""Texts one behind the other, without padding, as the kernels read them.

rows       | text 0 | text 1 |   text 2   |     [T, hidden]
attention  keys and values are used where the maps put them, as a paged cache with blocks of one token
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import pointer

import numpy as np

from dormouse_worker.engine.pooling.batch import PooledSequence
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.scratch import Floats, address_of
from dormouse_worker.native import abi


class Packed:
    """The arrays of one pass, which lie still as long as this lives."""

    def __init__(self, texts: Sequence[PooledSequence]) -> None:
        lengths = np.array([text.num_tokens for text in texts], dtype=np.int64)
        self._starts: Ints = np.concatenate([[0], np.cumsum(lengths)])
        self._ends: Ints = np.repeat(lengths - 1, lengths)
        self._last_seen: list[Ints] = []  # to which descriptions point
        self._tables = self._starts[:-1, None] + np.arange(lengths.max())
        self.token_ids: Ints = np.concatenate([np.asarray(text.token_ids, dtype=np.int64) for text in texts])
        self.positions: Ints = np.arange(self._starts[-1]) - np.repeat(self._starts[:-1], lengths)
        self.kinds = self._kinds(texts, lengths)

    def describe(self, window: int | None = None, *, is_causal: bool = False) -> abi.Batch:
        """Return the pass as the kernels' attention reads it.

        A row sees its own text: what is less than a window away, None = all, and nothing behind it if it is causal.
        """
        group = abi.Group(block_tables=address_of(self._tables), num_columns=self._tables.shape[1])
        return abi.Batch(
            num_seqs=len(self._starts) - 1,
            num_tokens=len(self.positions),
            block_size=1,
            query_starts=address_of(self._starts),
            positions=address_of(self.positions),
            groups=pointer(group),
            last_seen=None if is_causal else address_of(self._seen_behind(window)),
        )

    def _seen_behind(self, window: int | None) -> Ints:
        """Return up to which position each row sees."""
        seen: Ints = self._ends if window is None else np.minimum(self._ends, self.positions + (window - 1))
        self._last_seen.append(seen)
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
