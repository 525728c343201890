"""What is worth an Event on a pool: the difference between its recorded slots and those about to be written. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dormouse_operator.decide.pools.conditions.fouled import words_of
from dormouse_operator.decide.pools.plan import PoolPlan
from dormouse_operator.manifests import EventRecord
from dormouse_operator.model.pool_observed import PoolObserved
from dormouse_operator.model.pools import Idleness, Pool, Refusal, Slot, SlotPhase
from dormouse_operator.model.units import in_gib

GRANTED, YIELDING, HELD, FOULED, REFUSED = "Granted", "Yielding", "Held", "Fouled", "GrantRefused"
RELEASED, RECALLED = "Released", "Recalled"


def events(observed: PoolObserved, plan: PoolPlan) -> list[EventRecord]:
    """Return what happened to slots since the recorded status was written."""
    pairs = ((observed.recorded(slot.name), slot) for slot in plan.slots)
    return [*_of_pool(observed.pool, plan.idleness), *(event for pair in pairs for event in _of_slot(*pair))]


def new_refusals(observed: PoolObserved, plan: PoolPlan) -> list[Refusal]:
    """Return the grants that were refused since."""
    pairs = ((observed.recorded(slot.name), slot) for slot in plan.slots)
    return [refusal for before, slot in pairs for refusal in _refusals(before, slot)]


def num_switches(observed: PoolObserved, plan: PoolPlan) -> int:
    """Return on how many slots another replica came to serve since."""
    pairs = ((observed.recorded(slot.name), slot) for slot in plan.slots)
    return sum(_held_now(slot) - _held_now(before) != set() for before, slot in pairs)


def _held_now(slot: Slot | None) -> set[object]:
    return {(holding.replica, holding.since) for holding in slot.holders} if slot and slot.is_settled else set()


def _of_pool(pool: Pool, idleness: Idleness) -> Iterator[EventRecord]:
    if idleness.released_since and not pool.is_released:
        words = f"nobody was awake for {pool.release_after_s} s: members' pods go, and with them the GPUs"
        yield EventRecord("Normal", RELEASED, words)
    if pool.is_released and not idleness.released_since:
        yield EventRecord("Normal", RECALLED, "members have pods again, and with them the GPUs")


def _of_slot(before: Slot | None, slot: Slot) -> Iterator[EventRecord]:
    for refusal in _refusals(before, slot):
        missing = f", {in_gib(refusal.missing_bytes)} are missing" if refusal.missing_bytes else ""
        words = f"slot {slot.name}: {refusal.replica} does not serve: {refusal.reason}{missing}"
        yield EventRecord("Warning", REFUSED, f"{words}; try {refusal.times}, the next one comes later")
    if before and (before.phase, before.next, before.leaving) == (slot.phase, slot.next, slot.leaving):
        return
    if slot.phase is SlotPhase.GRANTING:
        yield EventRecord("Normal", GRANTED, f"slot {slot.name} is given to {slot.next}")
    elif slot.phase is SlotPhase.YIELDING:
        whom = f"for {slot.next}" if slot.next else "for nobody yet"
        yield EventRecord("Normal", YIELDING, f"slot {slot.name}: {slot.leaving} leaves {whom}")
    elif slot.phase is SlotPhase.HELD:
        yield EventRecord("Normal", HELD, f"slot {slot.name}: {slot.holders[-1].replica} serves")
    elif slot.phase is SlotPhase.FOULED:
        yield EventRecord("Warning", FOULED, words_of(slot))


def _refusals(before: Slot | None, slot: Slot) -> list[Refusal]:
    known = {(refusal.replica, refusal.times) for refusal in before.refusals} if before else set()
    return [refusal for refusal in slot.refusals if (refusal.replica, refusal.times) not in known]
