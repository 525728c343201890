"""Which blocks of streams that leave are yet to be written: those that are full, in the order in which they became so.

Streams leave a worker that drains or gives them up. They go on while their blocks are written, a few between two
passes, and others read them where they go on next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dormouse_worker.engine.block_pool import BlockPool, Key


class HandOver:
    """Owns the queue. Empty unless streams leave."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._left: deque[tuple[int, Key]] = deque()

    def __repr__(self) -> str:
        return f"HandOver({len(self._left)} blocks)"

    def __len__(self) -> int:
        """Return how many there are, some of which may be written by now."""
        return len(self._left)

    def begin(self) -> None:
        """Take what the streams have, and what they will have."""
        self._left = self._pool.note_named()

    def end(self) -> None:
        """Streams stay: nothing of them is left to write."""
        self._pool.stop_noting()
        self._left = deque()

    def take(self, count: int, is_kept: Callable[[Key], bool]) -> list[tuple[int, Key]]:
        """Return the next ones that are still there, and not kept."""
        taken: list[tuple[int, Key]] = []
        while self._left and len(taken) < count:
            block, key = self._left.popleft()
            if self._pool.find(key) == block and not is_kept(key):
                taken.append((block, key))
        return taken
