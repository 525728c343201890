"""A slot that is given to nobody: nobody can end what is on it, or its record cannot be read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_operator.decide.pools.commands import DeletePod, GrantDevice, SetGate, Wait, WakeUp
from dormouse_operator.model.pools import Holding, Slot, SlotPhase, WayOut
from dormouse_operator.testing.nouns import NOW
from tests.operator_.decide.pools.nouns import POLICY, A, B, C, ago, fouled, granting, held, tenant, yielding
from tests.operator_.decide.pools.steps import DRAINING, GRANTED, SERVING, SILENT, step


@pytest.mark.parametrize(
    ("slot", "culprit"), [(held(A), A), (yielding(A, B), A), (granting(B), B)], ids=["held", "yielding", "granting"]
)
def test_a_lost_node_fouls_the_slot_until_the_pod_is_gone(slot, culprit):
    lost = tenant(culprit, SILENT, has_lost_node=True)
    foul = step(replace(slot, deepening=(C,)), lost).slot
    since = slot.holders[0].since if slot.holders else NOW
    left = {"leaving": culprit, "holders": (Holding(culprit, since),), "way_out": WayOut.POD}
    assert foul == Slot(name="s", since=NOW, phase=SlotPhase.FOULED, epoch=slot.epoch + 1, **left)
    assert step(foul, lost) == DeletePod(culprit)
    assert step(foul, replace(lost, is_deleting=True)) == Wait()
    dropped = step(foul).slot
    assert (dropped.phase, dropped.holders, dropped.leaving) == (SlotPhase.FOULED, (), None)
    assert step(dropped).slot.phase is SlotPhase.FREE


def test_when_the_culprit_is_gone_the_others_of_a_fouled_slot_hold_it_on():
    slot = fouled(A, B, leaving=A)
    dropped = step(slot, tenant(B)).slot
    assert (dropped.leaving, dropped.holders) == (None, (Holding(B, ago(9)),))
    assert step(dropped, tenant(B)).slot.phase is SlotPhase.HELD
    assert step(slot, tenant(A, SILENT)).slot.leaving == A, "and who drops out first need not be the culprit"


def test_a_holder_of_a_record_that_nobody_could_read_is_given_it_anew_and_opens_if_it_had_drained():
    well = step(fouled(A), tenant(A, DRAINING, **GRANTED)).slot
    assert well == granting(A, epoch=8)
    assert step(well, tenant(A, DRAINING, **GRANTED)) == GrantDevice(A, 8, "")
    assert step(well, tenant(A, DRAINING, grant_epoch=8)) == WakeUp(A, 8)
    held_again = step(well, tenant(A, grant_epoch=8)).slot
    assert step(held_again, tenant(A, grant_epoch=8)) == SetGate(A, is_open=True)
    assert step(fouled(A), tenant(A, SERVING, **GRANTED)).slot.phase is SlotPhase.HELD


def test_beside_a_holder_that_had_drained_the_other_holds_on():
    slot = fouled(A, B)
    well = step(slot, tenant(A, DRAINING, **GRANTED), tenant(B, **GRANTED)).slot
    assert well == granting(A, epoch=8, holders=(Holding(B, ago(9)),))
    goes = tenant(A, DRAINING, is_deleting=True, **GRANTED)
    assert step(slot, goes, tenant(B, **GRANTED)).slot.phase is SlotPhase.HELD, "whose pod goes stays shut"


def test_a_slot_is_used_again_once_it_is_known_what_its_holder_does():
    silent = tenant(A, SILENT, silent_s=POLICY.silent_s - 1)
    assert step(fouled(A), silent) == Wait()
    assert step(fouled(A), replace(silent, silent_s=POLICY.silent_s)).slot.phase is SlotPhase.HELD
