"""Who leaves a slot and does not do it gently: each way out that fails is followed by a deeper one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_operator.decide.pools.commands import DeletePod, Drain, EndEngine, Sleep, Wait
from dormouse_operator.decide.pools.leaving import observed
from dormouse_operator.decide.pools.transitions import go_deeper
from dormouse_operator.model.pools import SlotPhase, WayOut
from dormouse_operator.model.units import GIB
from dormouse_operator.testing.nouns import NOW
from tests.operator_.decide.pools.nouns import POLICY, A, C, later, replica, tenant, tenants, yielding
from tests.operator_.decide.pools.steps import (
    ABSENT,
    ASLEEP,
    DRAINING,
    FAILED,
    GRANTED,
    RISING,
    SERVING,
    SILENT,
    STANDBY,
    step,
)

SLEEP_S = POLICY.drain_s + POLICY.sleep_s


def deeper(slot, *there):
    """Return which way out is written."""
    written = step(slot, *there).slot
    assert (written.phase, written.since, written.epoch) == (SlotPhase.YIELDING, NOW, 8)
    return written.way_out


def test_a_replica_of_which_nothing_is_observed_is_absent():
    assert observed({}, A) == tenant(A, ABSENT)
    assert observed(tenants(tenant(A, RISING)), A) == tenant(A, RISING)


def test_who_does_not_drain_is_ended_at_the_deadline_and_not_before():
    slow = tenant(A, DRAINING, running_requests=3, request_counter=9, **GRANTED)
    assert step(yielding(for_s=POLICY.drain_s - 1), slow) == Wait(later(0.2)), "its requests may end before"
    assert step(yielding(for_s=POLICY.drain_s - 0.1), slow) == Wait(later(0.1))
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


def test_nobody_is_told_to_leave_again_as_gently_as_it_did_not():
    with pytest.raises(AssertionError):
        go_deeper(yielding(way_out=WayOut.LEVEL2), WayOut.LEVEL2, NOW)


def test_who_failed_has_its_engine_ended():
    assert deeper(yielding(), tenant(A, FAILED, **GRANTED)) is WayOut.STANDBY


def test_who_leaves_too_much_on_the_device_has_its_engine_ended():
    large = tenant(A, ASLEEP, residual_bytes=3 * GIB)
    others = [tenant(replica(f"n{number}"), ASLEEP, residual_bytes=GIB) for number in range(6)]
    assert step(yielding(), large, *others[:5]).slot.phase is SlotPhase.GRANTING, "others have left that much"
    assert deeper(yielding(), large, *others) is WayOut.STANDBY
    within = replace(large, residual_bytes=GIB)
    assert step(yielding(), within, replace(large, replica=C), *others).slot.phase is SlotPhase.GRANTING, (
        "of its own it leaves no more"
    )
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


def test_a_replica_that_leaves_with_too_large_an_engine_ends_it_after_its_requests():
    big = tenant(A, SERVING, is_oversized=True, **GRANTED)
    assert step(yielding(), replace(big, running_requests=1)) == Drain(A)
    assert step(yielding(), big) == Sleep(A, 3, 7, big.request_counter)
