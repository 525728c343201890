"""The next step of a slot: the way from one holder to the next, step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_operator.decide.pools.commands import (
    Drain,
    EndEngine,
    GrantDevice,
    RevokeDevice,
    SetGate,
    Sleep,
    Wait,
    WakeUp,
    Write,
)
from dormouse_operator.model.pools import Holding, SlotPhase, WayOut
from dormouse_operator.model.units import GIB
from dormouse_operator.testing.nouns import NOW
from tests.operator_.decide.pools.nouns import (
    POLICY,
    A,
    B,
    C,
    ago,
    free,
    granting,
    held,
    later,
    refusal,
    tenant,
    yielding,
)
from tests.operator_.decide.pools.steps import ASLEEP, DRAINING, GRANTED, RISING, SERVING, STANDBY, step

LEAVES = yielding()


@pytest.mark.parametrize(
    ("leaving", "expected"),
    [
        (tenant(A, gate_open=True, running_requests=2, **GRANTED), SetGate(A, is_open=False)),
        (tenant(A, running_requests=2, **GRANTED), Drain(A)),
        (tenant(A, DRAINING, running_requests=1, **GRANTED), Wait(later(0.2))),
        (tenant(A, DRAINING, request_counter=9, **GRANTED), Sleep(A, 1, 7, 9)),
        (tenant(A, request_counter=9, **GRANTED), Sleep(A, 1, 7, 9)),
        (tenant(A, ASLEEP, residual_bytes=5, **GRANTED), RevokeDevice(A, 7)),
        (tenant(A, STANDBY, **GRANTED), RevokeDevice(A, 7)),
    ],
    ids=["gate", "drain", "draining", "sleep", "idle", "asleep", "standby"],
)
def test_who_leaves_is_shut_drained_put_to_sleep_and_loses_its_grant(leaving, expected):
    assert step(LEAVES, leaving) == expected
    assert step(LEAVES, leaving) == expected, "and the same again"


@pytest.mark.parametrize(
    "out", [tenant(A, ASLEEP, residual_bytes=GIB), tenant(A, STANDBY), None], ids=["asleep", "standby", "no pod"]
)
def test_once_it_is_out_the_slot_is_given_to_who_waits_for_it(out):
    written = step(LEAVES, *filter(None, [out]))
    assert written == Write(replace(granting(B), epoch=8))


def test_who_leaves_for_nobody_leaves_the_slot_free_or_to_the_others():
    assert step(yielding(A, None), tenant(A, STANDBY)) == Write(freed(8))
    both = yielding(A, None, holders=(Holding(A, ago(9)), Holding(B, ago(8))))
    slot = step(both, tenant(A, STANDBY)).slot
    assert (slot.phase, slot.holders, slot.leaving) == (SlotPhase.HELD, (Holding(B, ago(8)),), None)


def freed(epoch):
    return replace(free(epoch=epoch), since=NOW)


@pytest.mark.parametrize(
    ("coming", "expected"),
    [
        (tenant(B, ASLEEP), GrantDevice(B, 7, "")),
        (tenant(B, STANDBY, grant_epoch=6), GrantDevice(B, 7, "")),
        (tenant(B, ASLEEP, grant_epoch=7), WakeUp(B, 7)),
        (tenant(B, STANDBY, grant_epoch=7), WakeUp(B, 7)),
        (tenant(B, DRAINING, grant_epoch=7), WakeUp(B, 7)),
        (tenant(B, RISING, grant_epoch=7), Wait(later(POLICY.wake_s))),
        (tenant(B, SERVING), GrantDevice(B, 7, "")),
    ],
)
def test_who_comes_is_granted_the_device_before_it_is_woken(coming, expected):
    assert step(granting(B), coming) == expected


def test_a_grant_is_for_the_very_container_that_was_seen():
    assert step(granting(B), tenant(B, ASLEEP, instance="one")) == GrantDevice(B, 7, "one")


def test_who_serves_holds_the_slot_and_what_it_refused_once_is_forgotten():
    slot = granting(B, refusals=(refusal(A), refusal(B)), deepening=(C,))
    serving = tenant(B, grant_epoch=7)
    written = step(slot, serving).slot
    assert written == held(B, for_s=0, epoch=8, refusals=(refusal(A),))
    assert step(written, serving) == SetGate(B, is_open=True)
    assert step(written, replace(serving, gate_open=True)) == Wait()


def test_beside_one_that_holds_it_another_comes():
    slot = granting(B, holders=(Holding(A, ago(50)),))
    written = step(slot, tenant(A, gate_open=True), tenant(B, grant_epoch=7)).slot
    assert written.holders == (Holding(A, ago(50)), Holding(B, NOW))


def test_nobody_is_granted_the_device_while_another_has_memory_of_it_without_a_grant():
    evicting = yielding(C, B, holders=(Holding(C, NOW),), epoch=8, way_out=WayOut.STANDBY)
    assert step(granting(B), tenant(B, ASLEEP), tenant(C, RISING)) == Write(evicting)
    assert step(evicting, tenant(B, ASLEEP), tenant(C, RISING)) == EndEngine(C, 8)
    assert step(evicting, tenant(B, ASLEEP), tenant(C, STANDBY)) == Write(granting(B, epoch=9))
    assert step(granting(B), tenant(B, ASLEEP), tenant(C, ASLEEP)) == GrantDevice(B, 7, "")


@pytest.mark.parametrize("slot", [free(epoch=3), held(A, epoch=3)], ids=["free", "held"])
def test_where_nothing_is_under_way_what_nobody_was_to_have_is_taken_back(slot):
    holder = tenant(A, gate_open=True, **GRANTED) if slot.holders else tenant(A, STANDBY)
    written = step(slot, holder, tenant(C, RISING)).slot
    assert (written.phase, written.leaving, written.next) == (SlotPhase.YIELDING, C, None)
    assert (written.way_out, written.holders) == (WayOut.STANDBY, (*slot.holders, Holding(C, NOW)))
    assert step(written, holder, tenant(C, STANDBY)).slot.holders == slot.holders
    assert step(slot, holder, tenant(C, ASLEEP, grant_epoch=2)) == RevokeDevice(C, 3)
    assert step(slot, holder, tenant(C, ASLEEP)) == Wait()


def test_a_holder_that_starts_its_engine_or_drains_for_others_is_left_alone():
    for state in (RISING, DRAINING):
        assert step(held(A), tenant(A, state, **GRANTED)) == Wait()


@pytest.mark.parametrize("state", [ASLEEP, STANDBY])
def test_a_holder_that_went_to_sleep_by_itself_leaves_for_nobody(state):
    assert step(held(A), tenant(A, state, **GRANTED)) == Write(yielding(A, None, epoch=1))


def test_of_two_holders_both_are_seen_after():
    first = tenant(A, gate_open=True, **GRANTED)
    assert step(held(A, B), first, tenant(B, **GRANTED)) == SetGate(B, is_open=True)
