"""Who may decide over a pool's slots: the operator's arbiter, and the ways it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bench.pools_world import key_of
from dormouse_operator.decide.pools import arbiter
from dormouse_operator.decide.pools.arbiter import Decision, Grant, Yield
from dormouse_operator.decide.pools.waiting import Waiter, waiters
from dormouse_operator.model.pools import Demands, PoolPolicy, Slot, SlotPhase

FOREVER_S = 1e9
DEFAULTS = PoolPolicy()


@dataclass(frozen=True, slots=True)
class Ours:
    """The operator's arbiter."""

    policy: PoolPolicy = DEFAULTS

    @property
    def drain_s(self) -> float:
        """Return how long a holder's calls may take to end."""
        return self.policy.drain_s

    def decide(self, slots: Sequence[Slot], demands: Demands, now: datetime) -> Decision:
        """See `pools_world.Arbiter`."""
        return arbiter.decide(slots, demands, self.policy, now)


@dataclass(frozen=True, slots=True)
class LeastRecentlyUsed:
    """Who was called longest ago leaves for whoever waits, busy or not.

    Model swappers wait until its calls have ended; with `drain_s` what has not ended by then is parked, as we do.
    """

    drain_s: float = FOREVER_S

    def decide(self, slots: Sequence[Slot], demands: Demands, now: datetime) -> Decision:
        """See `pools_world.Arbiter`."""
        free = {slot.name: slot for slot in slots if slot.is_settled}
        grants: list[Grant] = []
        yields: list[Yield] = []
        for waiter in waiters(slots, demands, DEFAULTS, now):
            move = _oldest(waiter, free, demands)
            if isinstance(move, Grant):
                grants.append(move)
            elif move is not None:
                yields.append(move)
            if move is not None:
                del free[move.slot]
        return Decision(grants=tuple(grants), yields=tuple(yields))


@dataclass(frozen=True, slots=True)
class Static:
    """The most popular models have a slot each, for good; the others have none."""

    drain_s: float = FOREVER_S

    def decide(self, slots: Sequence[Slot], demands: Demands, now: datetime) -> Decision:
        """See `pools_world.Arbiter`."""
        del now  # it never changes its mind
        free = {key_of(int(slot.name)): slot.name for slot in slots if slot.phase is SlotPhase.FREE}
        asked = [demand for key, demand in demands.items() if key in free]
        places = [place for demand in asked for place in demand.places if place.slot == free[demand.key]]
        return Decision(grants=tuple(Grant(place.slot, place.replica) for place in places))


def _oldest(waiter: Waiter, free: dict[str, Slot], demands: Demands) -> Grant | Yield | None:
    """Return what brings a waiter onto a slot; None if something is under way on all of its slots."""
    places = [place for place in waiter.places if place.slot in free]
    if not places:
        return None
    place = max(places, key=lambda place: _quiet_s(free[place.slot], demands))
    holders = free[place.slot].holders
    return Yield(place.slot, holders[0].replica, place.replica) if holders else Grant(place.slot, place.replica)


def _quiet_s(slot: Slot, demands: Demands) -> float:
    """Return for how long nobody called the holder of a slot; for ever if nobody holds it."""
    return max((demands[holding.replica.key].quiet_s for holding in slot.holders), default=FOREVER_S)
