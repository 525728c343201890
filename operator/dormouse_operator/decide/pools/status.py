"""The status of a pool that people read and that a new operator goes on from. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dormouse_operator.decide.pools.budget import device_bytes
from dormouse_operator.decide.pools.conditions import Conditions
from dormouse_operator.decide.pools.plan import PoolPlan
from dormouse_operator.model import Condition
from dormouse_operator.model.pool_observed import PoolObserved, SlotClaim
from dormouse_operator.model.pools import SlotPhase
from dormouse_operator.parse import format_time, write_slot, write_time


def build_status(observed: PoolObserved, plan: PoolPlan, conditions: Conditions) -> dict[str, Any]:
    """Return the whole status."""
    return {
        "observedGeneration": observed.pool.generation,
        "members": sum(member.names_pool for member in observed.members.values()),
        "heldSlots": sum(slot.phase is SlotPhase.HELD for slot in plan.slots),
        "waitingMembers": len(plan.waiting),
        "deviceBytes": device_bytes(observed) or None,
        "idleSince": _write_or_none(plan.idleness.since),
        "releasedSince": _write_or_none(plan.idleness.released_since),
        "slots": [
            write_slot(slot, node=observed.node_of(slot.name), devices=devices_of(observed, slot.name))
            for slot in plan.slots
        ],
        "waiting": [
            {"name": name, "since": write_time(since), "wanted": wanted}
            for name, (since, wanted) in plan.waiting.items()
        ],
        "conditions": [_write_condition(observed, condition) for condition in conditions.values()],
    }


def devices_of(observed: PoolObserved, slot: str) -> tuple[str, ...]:
    """Return what a slot has. Members' pods go by it where pods reserve devices: none to what another slot has."""
    claim = observed.claims.get(slot, SlotClaim())
    return () if observed.twin_of(slot) or (claim.node and claim.is_deleting) else claim.devices


def _write_or_none(time: datetime | None) -> str | None:
    return write_time(time) if time else None


def _write_condition(observed: PoolObserved, condition: Condition) -> dict[str, Any]:
    """Return the condition with its times: the old one unless the status flipped."""
    before = observed.pool.conditions.get(condition.type)
    kept = before.since if before and before.condition.status == condition.status else None
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message[:4096],
        "lastTransitionTime": format_time(kept or observed.now),
        "observedGeneration": observed.pool.generation,
    }
