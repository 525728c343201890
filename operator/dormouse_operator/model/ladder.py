"""The ladder: how deep a deployment sleeps when nobody calls, and where it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

SleepLevel = Literal[1, 2, 3]
SLEEP_LEVELS: tuple[SleepLevel, ...] = (1, 2, 3)


class Rung(StrEnum):
    """How deep, from awake to no pod at all."""

    ACTIVE = "Active"
    LEVEL1 = "Level1"
    LEVEL2 = "Level2"
    LEVEL3 = "Level3"  # STANDBY: a pod with its front, and no engine process
    ZERO = "Zero"

    @property
    def depth(self) -> int:
        """Return 0 for awake, more the deeper."""
        return list(Rung).index(self)


IDLE, REQUEST, PREWARM = "idle", "request", "prewarm"  # why a deployment is on its rung
LOAD = "load"  # awake, and more of its replicas are wanted than the first wake brought
NEIGHBOUR = "neighbour"  # another deployment was called that has the same GPU
PRESSURE = "pressure"  # its node's host memory is short


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Where a deployment is on the ladder, as the status tells it."""

    rung: Rung
    since: datetime  # when it was decided
    reason: str
    idle_since: datetime | None = None  # nothing was asked from then on; None while Active
    wake_intent: str = ""  # the one that was known when this rung began
    awake: int | None = None  # while Active: so many replicas are woken, the rest sleeps on; None = all
    present: int | None = None  # so many replicas have a pod since it came back from Zero; None = all

    @property
    def idle_s(self) -> int:
        """Return for how long nothing was asked when this rung began."""
        return int((self.since - self.idle_since).total_seconds()) if self.idle_since else 0
