"""Fouled: a slot is given to nobody, as none can tell what is on its devices. Somebody may have to act. Pure."""

from __future__ import annotations

from dormouse_operator.decide.pools.plan import PoolPlan
from dormouse_operator.model import Condition
from dormouse_operator.model.pools import Slot, SlotPhase

TYPE = "Fouled"


def evaluate(plan: PoolPlan) -> Condition:
    """See the module."""
    fouled = [slot for slot in plan.slots if slot.phase is SlotPhase.FOULED]
    if not fouled:
        return Condition(TYPE, "False", "AsExpected", "every slot can be given")
    return Condition(TYPE, "True", "SlotFouled", "; ".join(words_of(slot) for slot in fouled), is_failure=True)


def words_of(slot: Slot) -> str:
    """Return why a slot is given to nobody."""
    if slot.leaving:
        return f"slot {slot.name}: the pod of {slot.leaving} cannot be ended; the slot is free once it is gone"
    held = ", ".join(str(holding.replica) for holding in slot.holders)
    after = f"; {held} may still have memory there" if held else ""
    return f"slot {slot.name}: its record or its devices cannot be trusted{after}"
