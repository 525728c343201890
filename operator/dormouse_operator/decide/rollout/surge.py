"""The next single step of a roll-out by other pods. Pure, knows numbers only, stores nothing.

    ceiling = wanted + max surge            no creation leads above it; pods that are ending count, they hold devices
    floor   = wanted - max unavailable      no removal leads below it
    remove    old - (floor - new ready); those that do not serve first, so no more that serve than are above the floor
    create    what is missing of the new, as far as the ceiling lets

What makes it hard: (1) an old pod that does not serve may serve again, so it is no free prey: as many old ones stay as
the new ones leave to reach the floor. (2) whatever ends still holds its device, so room is there only when it is gone.
(3) the spec may change at any time: what was new is old then, and the answer must not depend on what was planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dormouse_operator.decide.rollout.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many pods there are. Old are those that nobody wants any more: of another revision, or too many."""

    wanted: int
    old_total: int
    new_ready: int
    new_total: int
    ending: int = 0  # on their way out; in neither of the totals


@dataclass(frozen=True, slots=True)
class Step:
    """Remove so many old pods, or create so many new ones."""

    verb: Literal["remove", "create"]
    count: int


def next_step(counts: Counts, limits: Limits) -> Step | None:
    """Return what to do next, None if there is nothing or somebody has to be waited for."""
    return _try_remove(counts, limits) or _try_create(counts, limits)


def _try_remove(counts: Counts, limits: Limits) -> Step | None:
    floor = max(0, counts.wanted - limits.max_unavailable)
    count = min(counts.old_total, counts.old_total + counts.new_ready - floor)
    return Step("remove", count) if count > 0 else None


def _try_create(counts: Counts, limits: Limits) -> Step | None:
    ceiling = counts.wanted + limits.max_surge
    total = counts.old_total + counts.new_total + counts.ending
    count = min(counts.wanted - counts.new_total, ceiling - total)
    return Step("create", count) if count > 0 else None
