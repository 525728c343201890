"""When a holder leaves for a waiter. Pure.

An idle holder leaves at once. A busy one is left alone for its turn, and until the waiter's patience is over:

    turn = max(min_active_s × weight, what makes the switch worth its time)      deficit round robin, in seconds

(Shreedhar and Varghese, 1995), so that of members that are always busy each gets its weight's share, and switching
takes no more than `max_switching_share`. A member never loses its last replica for another's second one, and in the
order Priority none leaves for a waiter that has not come up to its own priority.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dormouse_operator.decide.pools.waiting import Waiter, count_awake
from dormouse_operator.model.pools import Demand, Demands, Holding, Place, PoolPolicy, Replica, Slot
from dormouse_operator.model.wanted import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A pool at one moment: its slots by name, what members ask for, the rules."""

    slots: Mapping[str, Slot]
    demands: Demands
    policy: PoolPolicy
    now: datetime
    gateways_heard: bool = True  # False: one of them may hold or send requests that nobody knows of
    awake: Mapping[Key, int]  # how many replicas of each member serve, or will without another decision

    @classmethod
    def of(
        cls, slots: Iterable[Slot], demands: Demands, policy: PoolPolicy, now: datetime, *, gateways_heard: bool
    ) -> Scene:
        """Return the pool with these slots."""
        by_name = {slot.name: slot for slot in slots}
        awake = count_awake(by_name.values())
        return cls(slots=by_name, demands=demands, policy=policy, now=now, gateways_heard=gateways_heard, awake=awake)

    def with_slot(self, slot: Slot) -> Scene:
        """Return the pool with one slot changed."""
        slots = {**self.slots, slot.name: slot}
        return replace(self, slots=slots, awake=count_awake(slots.values()))


def leaves_at(scene: Scene, holding: Holding, waiter: Waiter, place: Place) -> datetime | None:
    """Return when a holder leaves for a waiter that wakes at this place instead; None = not as things are."""
    demand = scene.demands.get(holding.replica.key)
    if demand is None or is_spare(scene, demand):
        return scene.now
    if not scene.gateways_heard or waiter.num_awake >= scene.awake[demand.key]:
        return None
    turn = timedelta(seconds=scene.policy.turn_s(demand.weight, _switch_s(demand, holding.replica, place)))
    waits = timedelta(seconds=_needed_wait_s(scene.policy, demand, waiter) - waiter.waited_s)
    return max(holding.since + turn, scene.now + waits)


def is_spare(scene: Scene, demand: Demand) -> bool:
    """Return whether a holder's member has more awake than it asks for. While a gateway is not heard, if it is idle."""
    return demand.is_idle or (scene.gateways_heard and scene.awake[demand.key] > demand.wanted)


def _switch_s(demand: Demand, leaving: Replica, place: Place) -> float:
    """Return how long neither serves."""
    return place.wake_s + max((own.sleep_s for own in demand.places if own.replica == leaving), default=0.0)


def _needed_wait_s(policy: PoolPolicy, holder: Demand, waiter: Waiter) -> float:
    """Return for how long a waiter has to wait until a busy holder leaves for it, its turn being over."""
    if policy.order == "Fair":
        return policy.patience_s
    return max(policy.patience_s, (holder.priority - waiter.demand.priority) * policy.aging_s)
