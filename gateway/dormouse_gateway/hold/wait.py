"""A request's wait for a worker: what its door knows before, and what it may tell its client after. Nouns only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from dormouse_gateway.clients.shares import NOBODYS, Flow


class Start(StrEnum):
    """From where the worker that took a request had to come."""

    WARM = "warm"
    LEVEL1 = "level1"
    LEVEL2 = "level2"
    LEVEL3 = "level3"
    COLD = "cold"


OnHeld = Callable[[float], Awaitable[None]]


async def _tell_nobody(_limit_s: float) -> None:
    """Have nobody to tell that the request is held."""


@dataclass(slots=True)
class HoldTicket:
    """One request's way to a worker: what its door knows before, and what it may tell its client after."""

    num_bytes: int
    deadline_s: float  # on the holder's clock
    flow: Flow = field(default=NOBODYS, kw_only=True)
    on_held: OnHeld = _tell_nobody  # called once it must wait, with the seconds that it may be held at most
    start: Start = Start.WARM
    is_held: bool = False  # whether `on_held` was called for the worker that was asked for last
    hold_s: float = 0.0
    wake_s: float = 0.0  # of these, until a worker took requests
    over_s: float = 0.0  # when it last waited, on the holder's clock

    def rest(self, num_bytes: int) -> HoldTicket:
        """Return the wait of a part that goes on elsewhere; where the whole began stays as it was."""
        return replace(self, num_bytes=num_bytes, is_held=False, hold_s=0.0, wake_s=0.0, over_s=0.0)

    def add(self, part: HoldTicket) -> None:
        """Count how long a part waited; parts that waited at the same time count once."""
        begun_s = part.over_s - part.hold_s
        self.hold_s += max(0.0, part.over_s - max(begun_s, self.over_s))
        self.over_s = max(self.over_s, part.over_s)
