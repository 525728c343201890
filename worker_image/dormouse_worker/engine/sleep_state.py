"""Which parts of a worker's memory sleep, and how deep. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dormouse_worker.common.commands import TAGS


@dataclass(frozen=True, slots=True)
class SleepState:
    """What sleeps, each part at the deepest level that was asked of it: one may have kept what the other has not."""

    levels: Mapping[str, int] = field(default_factory=dict)  # by tag; what is awake is not in it

    @property
    def level(self) -> int:
        """Return the deepest level of all parts; 0 = awake."""
        return max(self.levels.values(), default=0)

    @property
    def tags(self) -> tuple[str, ...]:
        """Return what sleeps, in the order in which it wakes."""
        return tuple(tag for tag in TAGS if tag in self.levels)

    def covers(self, level: int, tags: Collection[str]) -> bool:
        """Return whether each of these sleeps so deep already."""
        return all(self.levels.get(tag, 0) >= level for tag in tags)

    def deepen(self, level: int, tags: Collection[str]) -> SleepState:
        """Return what sleeps once these have been put to sleep too."""
        return SleepState({**self.levels, **{tag: max(level, self.levels.get(tag, 0)) for tag in tags}})

    def wake(self, tags: Collection[str]) -> SleepState:
        """Return what still sleeps once these are awake."""
        return SleepState({tag: level for tag, level in self.levels.items() if tag not in tags})
