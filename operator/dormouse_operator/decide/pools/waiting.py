"""Who waits for a slot of a pool, and in which order. Pure.

    Fair       rank = waited × weight                 who waits gains on everyone who came later, whatever the weights
    Priority   rank = priority + waited / aging_s     a low priority becomes a high one by waiting: nobody starves

A member that has nothing awake comes before one that wants more of it. A replica whose wake failed backs off: it is no
place in the meantime, so a member without another waits, and holds nobody up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from dormouse_operator.model.pools import Demand, Demands, Place, PoolPolicy, Replica, Slot, SlotPhase
from dormouse_operator.model.wanted import Key


@dataclass(frozen=True, slots=True)
class Waiter:
    """A member that wants one more replica awake."""

    demand: Demand
    places: tuple[Place, ...]  # where that could be: without those that serve, are on their way, or back off
    num_awake: int
    waited_s: float

    def rank(self, policy: PoolPolicy) -> float:
        """Return how far up it is; more is first."""
        if policy.order == "Priority":
            return self.demand.priority + self.waited_s / policy.aging_s
        return self.waited_s * self.demand.weight


def staying(slot: Slot) -> list[Replica]:
    """Return whoever serves on a slot, or will without another decision."""
    if slot.phase is SlotPhase.FOULED:
        return []
    coming = [slot.next] if slot.next else []
    return [*(holding.replica for holding in slot.holders if holding.replica != slot.leaving), *coming]


def count_awake(slots: Iterable[Slot]) -> Mapping[Key, int]:
    """Return how many replicas of each member serve, or will without another decision; members without are not in."""
    return Counter(replica.key for slot in slots for replica in staying(slot))


def backing_off(slots: Iterable[Slot], policy: PoolPolicy, now: datetime) -> dict[Replica, datetime]:
    """Return until when each replica whose wake failed is left alone."""
    ends = {found.replica: found.at + policy.backoff(found) for slot in slots for found in slot.refusals}
    return {replica: end for replica, end in ends.items() if end > now}


def waiters(slots: Collection[Slot], demands: Demands, policy: PoolPolicy, now: datetime) -> list[Waiter]:
    """Return the members that wait, first the one whose turn it is; also those that have no place to wake at now."""
    awake = count_awake(slots)
    taken = {*backing_off(slots, policy, now), *(replica for slot in slots for replica in (*slot.may_hold, slot.next))}
    found = [_waiter(demand, awake.get(demand.key, 0), taken, now) for demand in demands.values()]
    waiting = [waiter for waiter in found if waiter.num_awake < waiter.demand.wanted]
    return sorted(waiting, key=lambda waiter: (waiter.num_awake > 0, -waiter.rank(policy), waiter.demand.key))


def _waiter(demand: Demand, num_awake: int, taken: Collection[Replica | None], now: datetime) -> Waiter:
    waited_s = (now - demand.waiting_since).total_seconds() if demand.waiting_since else 0.0
    places = tuple(place for place in demand.places if place.replica not in taken)
    return Waiter(demand, places, num_awake, max(0.0, waited_s))
