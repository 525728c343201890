"""What is written to a slot's status: one function for each change, each raising the epoch. Pure: slot → slot.

    Free ──grant──▶ Granting ──settle──▶ Held ──begin_yield──▶ Yielding ──let_go──▶ Granting, or Held, or Free
                        └──turn_away─────────────────────────▶ Yielding
    Free, Granting, Held ──evict──▶ Yielding        any ──foul──▶ Fouled ──clear──▶ Granting, or Held, or Free

A change is written before any command that follows from it, and commands carry the epoch: a worker that has heard of a
later one does nothing, and an answer to an earlier one is no answer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from dormouse_operator.model.pools import Holding, Refusal, Replica, Slot, SlotPhase, WayOut


def grant(slot: Slot, replica: Replica, now: datetime) -> Slot:
    """Give room on the device to a replica that sleeps there."""
    assert slot.is_settled
    return _changed(slot, now, phase=SlotPhase.GRANTING, next=replica)


def begin_yield(
    slot: Slot, leaving: Replica, next_: Replica | None, now: datetime, way_out: WayOut = WayOut.LEVEL1
) -> Slot:
    """Have a holder leave, for somebody or for nobody."""
    assert slot.is_settled
    return _changed(slot, now, phase=SlotPhase.YIELDING, leaving=leaving, next=next_, way_out=way_out)


def go_deeper(slot: Slot, way_out: WayOut, now: datetime) -> Slot:
    """Have who leaves do it less gently: the way so far did not lead out."""
    assert way_out.depth > slot.way_out.depth
    return _changed(slot, now, way_out=way_out)


def let_go(slot: Slot, now: datetime) -> Slot:
    """Forget the holder that has left; who waits for its place is given it."""
    rest = tuple(holding for holding in slot.holders if holding.replica != slot.leaving)
    phase = SlotPhase.GRANTING if slot.next is not None else _rest_phase(rest)
    return _changed(slot, now, phase=phase, holders=rest, leaving=None, way_out=WayOut.LEVEL1)


def evict(slot: Slot, intruder: Replica, now: datetime) -> Slot:
    """Have a replica leave that has memory which it was not given. Who was to be next still is."""
    assert slot.phase is not SlotPhase.YIELDING
    holders = (*slot.holders, Holding(intruder, now))
    return _changed(slot, now, phase=SlotPhase.YIELDING, holders=holders, leaving=intruder, way_out=WayOut.STANDBY)


def withdraw(slot: Slot, refusal: Refusal, now: datetime) -> Slot:
    """Forget whom the device was given to, as there is nothing of it any more; remember that it went."""
    refusals = (*_without(slot.refusals, refusal.replica), refusal)
    return _changed(slot, now, phase=_rest_phase(slot.holders), next=None, deepening=(), refusals=refusals)


def settle(slot: Slot, now: datetime) -> Slot:
    """Let the replica that serves now hold the slot."""
    assert slot.next is not None
    holders = (*slot.holders, Holding(slot.next, now))
    refusals = _without(slot.refusals, slot.next)
    return _changed(slot, now, phase=SlotPhase.HELD, holders=holders, next=None, deepening=(), refusals=refusals)


def retry(slot: Slot, refusal: Refusal, deepening: tuple[Replica, ...], now: datetime) -> Slot:
    """Have sleepers give their residues up, and the replica that did not fit try once more."""
    return _changed(slot, now, refusals=(*_without(slot.refusals, refusal.replica), refusal), deepening=deepening)


def turn_away(slot: Slot, refusal: Refusal | None, way_out: WayOut, now: datetime) -> Slot:
    """Take the device back from the replica that did not come to serve; remember that, unless it could not help it."""
    assert slot.next is not None
    holders = (*slot.holders, Holding(slot.next, now))
    refusals = (*_without(slot.refusals, slot.next), refusal) if refusal else slot.refusals
    return _changed(
        slot,
        now,
        phase=SlotPhase.YIELDING,
        holders=holders,
        leaving=slot.next,
        next=None,
        way_out=way_out,
        deepening=(),
        refusals=refusals,
    )


def drop(slot: Slot, gone: Collection[Replica], now: datetime) -> Slot:
    """Forget holders of which nothing is left on the device."""
    rest = tuple(holding for holding in slot.holders if holding.replica not in gone)
    leaving = None if slot.leaving in gone else slot.leaving
    phase = slot.phase if slot.phase is SlotPhase.FOULED else _rest_phase(rest)
    return _changed(slot, now, phase=phase, holders=rest, leaving=leaving)


def foul(slot: Slot, culprit: Replica, now: datetime) -> Slot:
    """Give the device to nobody: a replica on it cannot be ended."""
    granted = (Holding(slot.next, now),) if slot.next and slot.phase is SlotPhase.GRANTING else ()
    holders = (*slot.holders, *granted)
    return _changed(
        slot, now, phase=SlotPhase.FOULED, holders=holders, leaving=culprit, next=None, way_out=WayOut.POD, deepening=()
    )


def clear(slot: Slot, draining: Replica | None, now: datetime) -> Slot:
    """Use the slot again: whoever fouled it is gone. A holder that was leaving by then is given it anew."""
    assert slot.leaving is None
    rest = tuple(holding for holding in slot.holders if holding.replica != draining)
    phase = _rest_phase(rest) if draining is None else SlotPhase.GRANTING
    return _changed(slot, now, phase=phase, holders=rest, next=draining, way_out=WayOut.LEVEL1)


def _rest_phase(holders: tuple[Holding, ...]) -> SlotPhase:
    return SlotPhase.HELD if holders else SlotPhase.FREE


def _without(refusals: tuple[Refusal, ...], replica: Replica) -> tuple[Refusal, ...]:
    return tuple(refusal for refusal in refusals if refusal.replica != replica)


def _changed(slot: Slot, now: datetime, **fields: object) -> Slot:
    return replace(slot, since=now, epoch=slot.epoch + 1, **fields)  # type: ignore[arg-type]
