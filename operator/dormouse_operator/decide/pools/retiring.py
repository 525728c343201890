"""Who gives a slot up though nobody waits for it: by order, by its own ladder, because its slot goes. Pure.

A busy replica of a slot that goes has its requests drained as in any switch. A member's ladder tells how deep it
sleeps.
"""

from __future__ import annotations

from dormouse_operator.decide.pools.transitions import begin_yield
from dormouse_operator.model import Deployment, Rung
from dormouse_operator.model.pool_observed import PoolObserved
from dormouse_operator.model.pools import Demands, Replica, Slot, SlotPhase, WayOut

# a way that ends no request; from there the member's own pass goes deeper
_BY_RUNG = dict.fromkeys((Rung.LEVEL2, Rung.LEVEL3, Rung.ZERO), WayOut.LEVEL2) | {Rung.LEVEL1: WayOut.LEVEL1}


def retire(slot: Slot, observed: PoolObserved, demands: Demands) -> Slot:
    """Return the slot with the first holder leaving that has to; unchanged if none has, or something is under way."""
    if slot.phase is not SlotPhase.HELD:
        return slot
    for holding in slot.holders:
        way_out = _way_out(slot, observed, demands, holding.replica)
        if way_out:
            return begin_yield(slot, holding.replica, None, observed.now, way_out)
    return slot


def _way_out(slot: Slot, observed: PoolObserved, demands: Demands, replica: Replica) -> WayOut | None:
    """Return how a holder leaves, None if it stays."""
    if not observed.stays(slot.name):
        return WayOut.STANDBY if _is_idle(demands, replica) else WayOut.LEVEL1
    member = observed.members.get(replica.key)
    if member is None or member.deployment is None or not _is_idle(demands, replica):
        return None
    return _ordered(member.deployment)


def _ordered(deployment: Deployment) -> WayOut | None:
    """Return how deep a member that nobody calls should sleep, None if it may stay awake."""
    lifecycle, ladder = deployment.lifecycle, deployment.recorded.ladder
    if lifecycle.desired_state == "Asleep":
        return WayOut.LEVEL1 if lifecycle.sleep_level == 1 else WayOut.LEVEL2
    if lifecycle.desired_state == "Auto" and ladder:
        return _BY_RUNG.get(ladder.rung)
    return None


def _is_idle(demands: Demands, replica: Replica) -> bool:
    demand = demands.get(replica.key)
    return demand is None or demand.is_idle
