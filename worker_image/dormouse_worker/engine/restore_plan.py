"""Which blocks of a store lengthen a sequence's known beginning, and whether reading them is worth it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dormouse_worker.engine.block_pool import Key
from dormouse_worker.engine.block_tables import CacheLayout
from dormouse_worker.engine.prefix import BlockHash

_WEIGHT = 0.25  # of what was measured last
TRY_EVERY = 32  # readings left, one is tried: a disk that was slow once would never be measured again

Knows = Callable[[Key], bool]


def plan_restore(
    layout: CacheLayout, hashes: Sequence[BlockHash], max_tokens: int, *, in_pool: Knows, in_store: Knows
) -> list[Key]:
    """Return what to read, in token order, for the longest beginning of at most `max_tokens`; what is known is not.

    Layers with a window need only what the next token sees, as in `BlockTables.find_prefix`.
    """

    def is_missing(group: int, index: int) -> bool:
        key = (group, hashes[index])
        return not in_pool(key) and not in_store(key)

    groups = range(len(layout.windows))
    limit = min(len(hashes), max_tokens // layout.block_size)
    count = _first_missing(limit, layout.whole_groups, is_missing)

    def last_gap(group: int) -> int:
        first = layout.first_needed(group, count * layout.block_size)
        return next((index for index in range(count - 1, first - 1, -1) if is_missing(group, index)), -1)

    windowed = [group for group in groups if layout.windows[group] is not None]
    while (gap := max(map(last_gap, windowed), default=-1)) >= 0:
        count = gap
    firsts = [layout.first_needed(group, count * layout.block_size) for group in groups]
    keys = ((group, hashes[index]) for index in range(count) for group in groups if index >= firsts[group])
    return [key for key in keys if not in_pool(key)]


def unknown_hashes(
    layout: CacheLayout, hashes: Sequence[BlockHash], max_tokens: int, is_known: Knows
) -> Sequence[BlockHash]:
    """Return what else could lengthen a beginning of at most `max_tokens`: all from the first that is not known."""
    limit = min(len(hashes), max_tokens // layout.block_size)
    groups = layout.whole_groups or range(len(layout.windows))
    return hashes[_first_missing(limit, groups, lambda group, index: not is_known((group, hashes[index]))) : limit]


def _first_missing(limit: int, groups: Sequence[int], is_missing: Callable[[int, int], bool]) -> int:
    return next((index for index in range(limit) if any(is_missing(group, index) for group in groups)), limit)


@dataclass(slots=True)
class Rates:
    """What was measured of late; 0 = nothing yet, and what is not known is tried."""

    tokens_per_s: float = 0.0  # of passes over prompts
    bytes_per_s: float = 0.0  # of reading from the store
    written_per_s: float = 0.0  # bytes, of writing to it
    fetched_per_s: float = 0.0  # bytes, of reading from other workers
    num_left: int = 0  # readings that were not worth it

    def note_pass(self, num_tokens: int, seconds: float) -> None:
        """A pass over prompts took so long."""
        self.tokens_per_s = _mean(self.tokens_per_s, num_tokens, seconds)

    def note_read(self, num_bytes: int, seconds: float) -> None:
        """Reading took so long."""
        self.bytes_per_s = _mean(self.bytes_per_s, num_bytes, seconds)

    def note_write(self, num_bytes: int, seconds: float) -> None:
        """Writing took so long."""
        self.written_per_s = _mean(self.written_per_s, num_bytes, seconds)

    def note_fetch(self, num_bytes: int, seconds: float) -> None:
        """Reading from another worker took so long."""
        self.fetched_per_s = _mean(self.fetched_per_s, num_bytes, seconds)

    def recompute_s(self, num_tokens: int) -> float:
        """Return what computing these takes; 0 = not known."""
        return num_tokens / self.tokens_per_s if self.tokens_per_s else 0.0

    def read_s(self, num_bytes: int) -> float:
        """Return what reading these takes; 0 = not known."""
        return num_bytes / self.bytes_per_s if self.bytes_per_s else 0.0

    def is_worth_reading(self, num_tokens: int, num_bytes: int) -> bool:
        """Return whether reading the bytes, and those that wait before them, is cheaper than computing the tokens."""
        return self._is_cheaper(self.read_s(num_bytes), num_tokens)

    def is_worth_fetching(self, num_tokens: int, num_bytes: int) -> bool:
        """Return the same of reading them from another worker."""
        return self._is_cheaper(num_bytes / self.fetched_per_s if self.fetched_per_s else 0.0, num_tokens)

    def is_worth_handing_over(self, num_tokens: int, num_bytes: int) -> bool:
        """Return whether writing the bytes and reading them, as fast as here, is cheaper than computing the tokens."""
        recompute_s = self.recompute_s(num_tokens)
        write_s = num_bytes / self.written_per_s if self.written_per_s else 0.0
        return not recompute_s or write_s + self.read_s(num_bytes) < recompute_s

    def _is_cheaper(self, read_s: float, num_tokens: int) -> bool:
        recompute_s = self.recompute_s(num_tokens)
        if not recompute_s or read_s < recompute_s:
            return True
        self.num_left += 1
        return self.num_left % TRY_EVERY == 0


def _mean(before: float, amount: int, seconds: float) -> float:
    if seconds <= 0:
        return before
    now = amount / seconds
    return now if not before else before + _WEIGHT * (now - before)
