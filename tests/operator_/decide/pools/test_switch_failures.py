"""What a slot does when something fails: each failure has its row, and each row ends somewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_operator.decide.pools.commands import (
    DeletePod,
    EndEngine,
    GrantDevice,
    RevokeDevice,
    SetGate,
    Sleep,
    TaintDevice,
    Wait,
    WakeUp,
    Write,
)
from dormouse_operator.decide.pools.switch import next_step
from dormouse_operator.model.pools import GIB, Holding, Refusal, SlotPhase, TenantState, WayOut
from dormouse_operator.testing.nouns import NOW
from tests.operator_.decide.pools.nouns import (
    POLICY,
    A,
    B,
    C,
    ago,
    demand,
    demands,
    fouled,
    free,
    granting,
    held,
    later,
    refusal,
    replica,
    tenant,
    tenants,
    yielding,
)

ASLEEP, STANDBY, RISING, DRAINING = TenantState.ASLEEP, TenantState.STANDBY, TenantState.RISING, TenantState.DRAINING
SERVING, FAILED, SILENT, ABSENT = TenantState.SERVING, TenantState.FAILED, TenantState.SILENT, TenantState.ABSENT
GRANTED = {"grant_epoch": 5}
SLEEP_S = POLICY.drain_s + POLICY.sleep_s


def step(slot, *there, asked=(), **fields):
    """Return the next step; what is written is of now, and one epoch later."""
    found = next_step(slot, tenants(*there), demands(*asked), POLICY, NOW, **fields)
    if isinstance(found, Write):
        assert (found.slot.since, found.slot.epoch) == (NOW, slot.epoch + 1)
    return found


def deeper(slot, *there):
    """Return which way out is written."""
    written = step(slot, *there).slot
    assert (written.phase, written.since, written.epoch) == (SlotPhase.YIELDING, NOW, 8)
    return written.way_out


def test_who_does_not_drain_is_ended_at_the_deadline_and_not_before():
    slow = tenant(A, DRAINING, running_requests=3, request_counter=9, **GRANTED)
    assert step(yielding(for_s=POLICY.drain_s - 1), slow) == Wait(later(1))
    assert step(yielding(for_s=POLICY.drain_s), slow) == Sleep(A, 1, 7, 9, must_abort=True)


def test_who_refuses_level_1_sleeps_at_level_2_and_then_its_engine_is_ended():
    refuses = tenant(A, DRAINING, refused_epoch=7, **GRANTED)
    assert deeper(yielding(), refuses) is WayOut.LEVEL2
    assert step(yielding(way_out=WayOut.LEVEL2, epoch=8), refuses) == Sleep(A, 2, 8, 0), "that was an older answer"
    assert deeper(yielding(way_out=WayOut.LEVEL2), refuses) is WayOut.STANDBY


@pytest.mark.parametrize("way_out", [WayOut.LEVEL1, WayOut.LEVEL2])
def test_the_engine_of_who_does_not_fall_asleep_in_time_is_ended(way_out):
    hangs = tenant(A, DRAINING, **GRANTED)
    assert isinstance(step(yielding(for_s=SLEEP_S - 1, way_out=way_out), hangs), Sleep)
    assert deeper(yielding(for_s=SLEEP_S, way_out=way_out), hangs) is WayOut.STANDBY


@pytest.mark.parametrize("state", [SERVING, DRAINING, RISING, ASLEEP, FAILED])
def test_who_is_to_go_to_standby_ends_its_engine_in_whatever_state_it_is(state):
    assert step(yielding(way_out=WayOut.STANDBY), tenant(A, state, **GRANTED)) == EndEngine(A, 7)


def test_asleep_is_not_out_once_standby_was_asked_for():
    assert step(yielding(way_out=WayOut.STANDBY), tenant(A, ASLEEP)) == EndEngine(A, 7)


def test_who_failed_has_its_engine_ended():
    assert deeper(yielding(), tenant(A, FAILED, **GRANTED)) is WayOut.STANDBY


def test_who_leaves_too_much_on_the_device_has_its_engine_ended():
    large = tenant(A, ASLEEP, residual_bytes=3 * GIB)
    others = [tenant(replica(f"n{number}"), ASLEEP, residual_bytes=GIB) for number in range(6)]
    assert step(yielding(), large, *others[:5]).slot.phase is SlotPhase.GRANTING, "others have left that much"
    assert deeper(yielding(), large, *others) is WayOut.STANDBY
    awake = replace(others[0], state=SERVING)
    assert step(yielding(), large, *others[1:], awake).slot.phase is SlotPhase.GRANTING, "that is no residue"


def test_the_pod_of_who_has_no_standby_in_time_is_deleted():
    hangs = tenant(A, RISING, **GRANTED)
    assert step(yielding(for_s=POLICY.standby_s - 1, way_out=WayOut.STANDBY), hangs) == EndEngine(A, 7)
    assert deeper(yielding(for_s=POLICY.standby_s, way_out=WayOut.STANDBY), hangs) is WayOut.POD
    leaves_some = tenant(A, STANDBY, residual_bytes=1)
    assert isinstance(step(yielding(way_out=WayOut.STANDBY), leaves_some), Wait)
    assert deeper(yielding(for_s=POLICY.standby_s, way_out=WayOut.STANDBY), leaves_some) is WayOut.POD


@pytest.mark.parametrize("way_out", [WayOut.LEVEL1, WayOut.LEVEL2, WayOut.STANDBY])
def test_the_pod_of_a_dead_front_is_deleted(way_out):
    silent = tenant(A, SILENT, silent_s=POLICY.silent_s - 1)
    assert isinstance(step(yielding(way_out=way_out), silent), Wait)
    assert deeper(yielding(way_out=way_out), replace(silent, silent_s=POLICY.silent_s)) is WayOut.POD


def test_a_pod_is_deleted_once_and_out_when_it_is_gone_or_another_one_stands_by():
    slot = yielding(way_out=WayOut.POD)
    silent = tenant(A, SILENT, silent_s=99)
    assert step(slot, silent) == DeletePod(A)
    assert step(slot, replace(silent, is_deleting=True)) == Wait(later(POLICY.pod_gone_s))
    assert step(slot, tenant(A, SERVING, **GRANTED)) == DeletePod(A)
    for out in (tenant(A, ABSENT), tenant(A, STANDBY)):
        assert step(slot, out).slot.phase is SlotPhase.GRANTING


def test_a_pod_that_does_not_go_fouls_the_slot():
    silent = tenant(A, SILENT, silent_s=99, is_deleting=True)
    assert isinstance(step(yielding(for_s=POLICY.pod_gone_s - 1, way_out=WayOut.POD), silent), Wait)
    slot = step(yielding(for_s=POLICY.pod_gone_s, way_out=WayOut.POD), silent).slot
    assert (slot.phase, slot.leaving, slot.next) == (SlotPhase.FOULED, A, None)


@pytest.mark.parametrize(
    ("slot", "culprit"), [(held(A), A), (yielding(A, B), A), (granting(B), B)], ids=["held", "yielding", "granting"]
)
def test_a_lost_node_fouls_the_slot_until_the_pod_is_gone(slot, culprit):
    lost = tenant(culprit, SILENT, has_lost_node=True)
    foul = step(slot, lost).slot
    assert (foul.phase, foul.leaving, [holding.replica for holding in foul.holders]) == (
        SlotPhase.FOULED,
        culprit,
        [culprit],
    )
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


@pytest.mark.parametrize(
    ("slot", "on_it"),
    [(free(), []), (held(A), [A]), (yielding(A, B), [A]), (granting(B), [B])],
    ids=["free", "held", "yielding", "granting"],
)
def test_a_sick_device_is_given_to_nobody_and_tainted_until_everyone_is_gone(slot, on_it):
    there = [tenant(found, SERVING, **GRANTED) for found in on_it]
    foul = step(slot, *there, is_sick=True).slot
    assert (foul.phase, foul.leaving, [holding.replica for holding in foul.holders]) == (
        SlotPhase.FOULED,
        None,
        on_it,
    )
    assert step(foul, *there, is_sick=True) == (TaintDevice("s") if on_it else Wait())
    if on_it:
        assert step(foul, is_sick=True).slot.holders == ()
    assert step(foul, *there).slot.phase is (SlotPhase.HELD if on_it else SlotPhase.FREE), "it is well again"


def test_a_holder_that_drained_when_its_device_fell_sick_is_given_it_anew_and_opens():
    foul = step(yielding(A, B), tenant(A, DRAINING, **GRANTED), is_sick=True).slot
    well = step(foul, tenant(A, DRAINING, **GRANTED)).slot
    assert well == granting(A, epoch=9)
    assert step(well, tenant(A, DRAINING, **GRANTED)) == GrantDevice(A, 9, "")
    assert step(well, tenant(A, DRAINING, grant_epoch=9)) == WakeUp(A, 9)
    held_again = step(well, tenant(A, grant_epoch=9)).slot
    assert step(held_again, tenant(A, grant_epoch=9)) == SetGate(A, is_open=True)


def test_beside_a_holder_that_drained_when_the_device_fell_sick_the_other_holds_on():
    slot = fouled(A, B)
    well = step(slot, tenant(A, DRAINING, **GRANTED), tenant(B, **GRANTED)).slot
    assert well == granting(A, epoch=8, holders=(Holding(B, ago(9)),))
    goes = tenant(A, DRAINING, is_deleting=True, **GRANTED)
    assert step(slot, goes, tenant(B, **GRANTED)).slot.phase is SlotPhase.HELD, "whose pod goes stays shut"


def test_a_device_that_is_well_again_is_used_once_it_is_known_what_its_holder_does():
    silent = tenant(A, SILENT, silent_s=POLICY.silent_s - 1)
    assert step(fouled(A), silent) == Wait()
    assert step(fouled(A), replace(silent, silent_s=POLICY.silent_s)).slot.phase is SlotPhase.HELD


def test_a_holder_that_has_memory_without_a_grant_has_its_engine_ended():
    slot = step(held(A), tenant(A, gate_open=True)).slot
    assert (slot.phase, slot.leaving, slot.next, slot.way_out) == (SlotPhase.YIELDING, A, None, WayOut.STANDBY)


def test_the_pod_of_an_intruder_that_stays_is_deleted_and_who_was_to_be_next_still_is():
    stays, comes = tenant(C, FAILED), tenant(B, ASLEEP)
    slot = step(granting(B, deepening=(A,)), stays, comes).slot
    assert (slot.leaving, slot.next, slot.way_out) == (C, B, WayOut.STANDBY)
    late = replace(slot, since=ago(POLICY.standby_s))
    pod = step(late, stays, comes).slot
    assert step(pod, stays, comes) == DeletePod(C)
    again = step(pod, comes).slot
    assert again == granting(B, epoch=10, deepening=(A,)), "without a refusal, and with all its time"
    foul = step(replace(pod, since=ago(POLICY.pod_gone_s)), stays, comes).slot
    assert (foul.phase, foul.leaving, foul.next, foul.refusals) == (SlotPhase.FOULED, C, None, ())


def test_who_was_granted_a_device_beside_an_intruder_gives_the_grant_back_while_it_has_no_memory():
    intruder = tenant(C, SERVING)
    for state in (ASLEEP, STANDBY):
        assert step(granting(B), tenant(B, state, grant_epoch=7, refused_epoch=7), intruder) == RevokeDevice(B, 7)
    assert step(granting(B), tenant(B, RISING, grant_epoch=7), intruder) == EndEngine(C, 7)


@pytest.mark.parametrize(
    ("coming", "for_s"),
    [
        (tenant(B, FAILED, grant_epoch=7), 0),
        (tenant(B, SILENT, silent_s=POLICY.silent_s), 0),
        (tenant(B, RISING, grant_epoch=7), POLICY.wake_s),
        (tenant(B, ASLEEP, grant_epoch=7), POLICY.wake_s),
    ],
    ids=["failed", "silent", "slow", "keeps its grant"],
)
def test_what_fails_beside_an_intruder_is_not_held_against_it(coming, for_s):
    slot = step(granting(B, for_s=for_s, refusals=(refusal(B, ago_s=99),)), coming, tenant(C, FAILED)).slot
    assert (slot.phase, slot.leaving, slot.refusals) == (SlotPhase.YIELDING, B, (refusal(B, ago_s=99),))


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
    assert [(found.times, found.missing_bytes) for found in again.refusals] == [(2, GIB + 1)]


def test_one_that_does_not_fit_though_nobody_has_anything_to_give_is_turned_away():
    refuses = tenant(B, ASLEEP, grant_epoch=7, refused_epoch=7, missing_bytes=9)
    before = granting(B, refusals=(refusal(B, times=3, ago_s=99), refusal(C)))
    slot = step(before, refuses, tenant(C, ASLEEP)).slot
    assert (slot.phase, slot.leaving) == (SlotPhase.YIELDING, B)
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
