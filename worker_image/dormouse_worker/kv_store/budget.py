"""Which files make room for others. Pure: knows sizes and times, and no file.

A file's time says how long it is worth keeping: when it was last used, and something on top for what is dear to
compute. The one with the earliest time goes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

PAGE_BYTES = 4096  # what a file takes is a multiple of it
NS_PER_S = 1_000_000_000
KEEP_S_PER_S_PER_MIB = 3600.0  # what takes a second to compute for each MiB counts as used an hour later
MAX_BONUS_S = 7 * 24 * 3600.0


def bonus_ns(recompute_s: float, num_bytes: int) -> int:
    """Return how much later than it was a use counts, for a block of so many bytes that takes so long to compute."""
    per_mib = recompute_s / (num_bytes / (1 << 20))
    return int(min(MAX_BONUS_S, KEEP_S_PER_S_PER_MIB * per_mib) * NS_PER_S)


def taken_bytes(num_bytes: int) -> int:
    """Return what a file of this size takes of the disk."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


class Budget:
    """What there is, by key (a path), and the order in which it goes. `num_bytes` counts what files take."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        self._entries: dict[str, tuple[int, int]] = {}  # key → time, bytes
        self._order: list[tuple[int, str]] = []  # a heap; what is not an entry's time any more counts for nothing

    def __repr__(self) -> str:
        return f"Budget({len(self._entries)} files, {self.num_bytes} of {self.limit_bytes} bytes)"

    def __contains__(self, key: str) -> bool:
        """Return whether it is counted."""
        return key in self._entries

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return what each takes."""
        return {key: size for key, (_, size) in self._entries.items()}

    def set(self, key: str, time_ns: int, num_bytes: int) -> None:
        """Count a file that is there, in place of what was known of it."""
        self.remove(key)
        self._entries[key] = time_ns, num_bytes
        self.num_bytes += num_bytes
        heapq.heappush(self._order, (time_ns, key))

    def remove(self, key: str) -> None:
        """Count a file no more; nothing happens if it is not known."""
        _, num_bytes = self._entries.pop(key, (0, 0))
        self.num_bytes -= num_bytes

    def first_to_go(self, needed_bytes: int) -> Iterator[tuple[str, int]]:
        """Yield one after the other what has to go before so many bytes fit, with its time.

        Whoever asks for the next has removed the last, or has set another time for it.
        """
        while self.num_bytes + needed_bytes > self.limit_bytes and self._order:
            time_ns, key = heapq.heappop(self._order)
            if self._entries.get(key, (None, 0))[0] != time_ns:
                continue
            yield key, time_ns
