"""What a slot does when a holder is lost, or who comes does not come: each failure has its row and ends somewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_operator.decide.pools.commands import EndEngine, GrantDevice, Wait, WakeUp, Write
from dormouse_operator.model.pools import Holding, Refusal, SlotPhase, WayOut
from dormouse_operator.model.units import GIB
from dormouse_operator.testing.nouns import NOW
from tests.operator_.decide.pools.nouns import (
    POLICY,
    A,
    B,
    C,
    ago,
    demand,
    free,
    granting,
    held,
    later,
    refusal,
    replica,
    tenant,
    yielding,
)
from tests.operator_.decide.pools.steps import ABSENT, ASLEEP, FAILED, GRANTED, RISING, SILENT, STANDBY, step


def test_a_holder_whose_container_restarted_has_lost_its_grant_and_the_slot():
    slot = step(held(A), tenant(A, STANDBY)).slot
    assert (slot.phase, slot.holders) == (SlotPhase.FREE, ())
    slot = step(held(A, B), tenant(A, STANDBY), tenant(B)).slot
    assert (slot.phase, slot.holders) == (SlotPhase.HELD, (Holding(B, ago(100)),))


def test_a_holder_that_was_deleted_has_lost_the_slot():
    assert step(held(A)).slot.phase is SlotPhase.FREE
    assert step(held(A), tenant(A, ABSENT)).slot.phase is SlotPhase.FREE


def test_one_that_restarts_while_it_is_woken_is_granted_the_device_again():
    assert step(granting(B), tenant(B, STANDBY)) == GrantDevice(B, 7, "")


def test_one_that_is_gone_while_it_is_woken_leaves_the_slot_free_or_to_the_others():
    gone = refusal(B, reason="WorkerGone")
    assert step(granting(B)).slot == replace(free(epoch=8, refusals=(gone,)), since=NOW)
    slot = step(granting(B, holders=(Holding(A, ago(5)),), deepening=(C,)), tenant(A)).slot
    assert (slot.phase, slot.next, slot.deepening, slot.refusals) == (SlotPhase.HELD, None, (), (gone,))
    before = granting(B, refusals=(refusal(B, times=2, ago_s=99),))
    assert step(before).slot.refusals == (replace(gone, times=3),), "it waits longer each time"


@pytest.mark.parametrize(
    ("fields", "way_out"),
    [
        ({"state": FAILED}, WayOut.STANDBY),
        ({"state": SILENT, "silent_s": POLICY.silent_s}, WayOut.POD),
    ],
    ids=["failed", "silent"],
)
def test_a_holder_that_fails_leaves_for_nobody(fields, way_out):
    slot = step(held(A), tenant(A, **GRANTED, **fields)).slot
    assert (slot.phase, slot.leaving, slot.next, slot.way_out) == (SlotPhase.YIELDING, A, None, way_out)
    assert step(held(A), tenant(A, SILENT, silent_s=POLICY.silent_s - 1)) == Wait()


def test_a_holder_whose_engine_does_not_come_up_leaves_at_a_deadline_though_nobody_asks():
    rising = tenant(A, RISING, **GRANTED)
    late = held(A, for_s=POLICY.wake_s)
    assert step(held(A, for_s=POLICY.wake_s - 1), rising) == Wait()
    slot = step(late, rising).slot
    assert (slot.phase, slot.leaving, slot.next, slot.way_out) == (SlotPhase.YIELDING, A, None, WayOut.STANDBY)
    assert step(late, replace(rising, engine_failed=ago(POLICY.wake_s - 1))) == Wait(), (
        "it counts from the engine's end"
    )
    assert isinstance(step(late, replace(rising, engine_failed=ago(POLICY.wake_s))), Write)


@pytest.mark.parametrize(
    ("coming", "for_s", "reason", "way_out"),
    [
        (tenant(B, FAILED, grant_epoch=7), 0, "WakeFailed", WayOut.STANDBY),
        (tenant(B, SILENT, silent_s=POLICY.silent_s), 0, "WorkerSilent", WayOut.POD),
        (tenant(B, RISING, grant_epoch=7), POLICY.wake_s, "WakeTooSlow", WayOut.STANDBY),
    ],
    ids=["failed", "silent", "slow"],
)
def test_one_that_does_not_come_to_serve_is_turned_away(coming, for_s, reason, way_out):
    slot = step(granting(B, for_s=for_s), coming).slot
    assert slot == yielding(
        B, None, holders=(Holding(B, NOW),), epoch=8, way_out=way_out, refusals=(refusal(B, reason=reason),)
    )


def test_one_that_is_silent_or_slow_for_a_moment_is_waited_for():
    silent = tenant(B, SILENT, silent_s=POLICY.silent_s - 1)
    assert step(granting(B), silent) == Wait(later(POLICY.wake_s))
    assert step(granting(B, for_s=POLICY.wake_s - 1), tenant(B, RISING, grant_epoch=7)) == Wait(later(1))


def test_for_one_that_does_not_fit_sleepers_go_deeper_the_least_valuable_first_and_it_tries_once_more():
    refuses = tenant(B, ASLEEP, grant_epoch=7, refused_epoch=7, missing_bytes=GIB + 1)
    sleepers = [tenant(replica(name), ASLEEP, residual_bytes=GIB) for name in "cde"]
    asked = [demand("c", wanted=0, quiet_s=50), demand("d", wanted=0, quiet_s=9), demand("e", wanted=0, quiet_s=70)]
    there = [refuses, tenant(replica("f"), STANDBY), *sleepers]
    slot = step(granting(B), *there, asked=asked).slot
    wanted = Refusal(replica=B, times=1, at=NOW, reason="SlotTooSmall", missing_bytes=GIB + 1)
    assert slot == granting(B, epoch=8, refusals=(wanted,), deepening=(replica("e"), replica("c")))
    assert step(slot, *there) == EndEngine(replica("e"), 8)
    gone = [refuses, tenant(C, STANDBY), sleepers[1], tenant(replica("e"), STANDBY)]
    assert step(slot, *gone) == GrantDevice(B, 8, "")
    assert step(slot, replace(refuses, grant_epoch=8), *gone[1:]) == WakeUp(B, 8), "that was an older answer"
    again = step(slot, replace(refuses, grant_epoch=8, refused_epoch=8), *gone[1:]).slot
    assert (again.phase, again.leaving, again.way_out) == (SlotPhase.YIELDING, B, WayOut.LEVEL1)
    assert again.deepening == (), "who comes next asks for nobody's residue until it does not fit"
    assert [(found.times, found.missing_bytes) for found in again.refusals] == [(2, GIB + 1)]


def test_one_that_does_not_fit_though_nobody_has_anything_to_give_is_turned_away():
    refuses = tenant(B, ASLEEP, grant_epoch=7, refused_epoch=7, missing_bytes=9)
    before = granting(B, refusals=(refusal(B, times=3, ago_s=99), refusal(C)))
    slot = step(before, refuses, tenant(C, ASLEEP)).slot
    assert (slot.phase, slot.leaving) == (SlotPhase.YIELDING, B)
    assert [(found.replica, found.times) for found in slot.refusals] == [(C, 1), (B, 4)]


def test_one_that_has_the_memory_and_does_not_wake_starts_from_its_files_the_next_time():
    refuses = tenant(B, ASLEEP, grant_epoch=7, refused_epoch=7)
    slot = step(granting(B, deepening=(C,)), refuses, tenant(C, STANDBY)).slot
    left = {"holders": (Holding(B, NOW),), "refusals": (refusal(B, reason="WakeRefused"),)}
    assert slot == yielding(B, None, epoch=8, way_out=WayOut.STANDBY, **left)


def test_of_each_replica_the_last_refusal_is_remembered():
    refuses = tenant(B, ASLEEP, grant_epoch=7, refused_epoch=7, missing_bytes=9)
    before = granting(B, refusals=(refusal(B, times=3, ago_s=99), refusal(C)))
    slot = step(before, refuses, tenant(C, ASLEEP, residual_bytes=9)).slot
    assert slot.deepening == (C,)
    assert [(found.replica, found.times) for found in slot.refusals] == [(C, 1), (B, 4)]


def test_a_sleeper_that_does_not_give_its_residue_up_is_not_waited_for_for_ever():
    slow = tenant(C, ASLEEP, residual_bytes=GIB)
    fields = {"deepening": (C,)}
    assert step(granting(B, for_s=POLICY.standby_s - 1, **fields), tenant(B, ASLEEP), slow) == EndEngine(C, 7)
    assert step(granting(B, for_s=POLICY.standby_s, **fields), tenant(B, ASLEEP), slow) == GrantDevice(B, 7, "")


def test_who_is_beside_a_holder_makes_no_sleeper_of_it():
    refuses = tenant(B, ASLEEP, grant_epoch=7, refused_epoch=7, missing_bytes=9)
    asleep = tenant(A, ASLEEP, residual_bytes=99)
    slot = step(granting(B, holders=(Holding(A, ago(5)),)), refuses, asleep).slot
    assert slot.phase is SlotPhase.YIELDING, "a holder's residue is its own"


def test_a_write_is_all_there_is_in_a_step():
    assert isinstance(step(yielding(), tenant(A, STANDBY)), Write)
