"""What may be ordered to sleep and to wake."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dormouse_worker.common.errors import InvalidArgument
from dormouse_worker.common.ipc import LEVELS, TAGS


def check_sleep(level: int, tags: Collection[str], kept_blocks: Sequence[int]) -> None:
    """Raise InvalidArgument, naming the value and what is allowed, for the first bad one."""
    check_tags(tags)
    if level not in LEVELS:
        raise InvalidArgument(f"level is {level}; allowed are 1 and 2")
    if kept_blocks and level != 1:
        raise InvalidArgument(f"{len(kept_blocks)} blocks shall be kept at level {level}; only level 1 keeps any")


def check_tags(tags: Collection[str]) -> None:
    """Raise InvalidArgument naming the first unknown tag."""
    unknown = sorted(set(tags) - set(TAGS))
    if unknown:
        raise InvalidArgument(f"tags has {unknown[0]!r}; allowed are {' and '.join(TAGS)}")
