"""Which parts of a worker's memory sleep and how deep, and what a command asks of that. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dormouse_worker.common.errors import InvalidArgument
from dormouse_worker.common.ipc import LEVELS, TAGS, Command

DEEPEST = LEVELS[-1]


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


@dataclass(frozen=True, slots=True)
class SleepOrder:
    """The arguments of a sleep."""

    level: int
    tags: tuple[str, ...]

    @classmethod
    def of(cls, command: Command) -> SleepOrder:
        """Read a command. Raises InvalidArgument."""
        level = integer(command, "level", DEEPEST)
        if level not in LEVELS:
            raise InvalidArgument(f"level is {level}; allowed are {_listed(LEVELS)}")
        return cls(level, tags_of(command))


def tags_of(command: Command) -> tuple[str, ...]:
    """Return the tags that a command names, in their order; none named = all. Raises InvalidArgument."""
    named = command.args.get("tags") or TAGS
    if isinstance(named, str) or not isinstance(named, Collection) or not set(named) <= set(TAGS):
        raise InvalidArgument(f"tags is {named!r}; allowed are {_listed(TAGS)}")
    return tuple(tag for tag in TAGS if tag in named)


def integer(command: Command, name: str, default: int | None = None) -> int:
    """Return an argument. Raises InvalidArgument if it is missing or of another type."""
    value = command.args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{name} is {value!r}; {command.method} needs an integer")
    return value


def _listed(values: Collection[object]) -> str:
    return " and ".join(str(value) for value in values)
