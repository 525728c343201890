"""Replicas that have memory which they were not given, and what becomes of those beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_operator.decide.pools.commands import DeletePod, EndEngine, RevokeDevice
from dormouse_operator.model.pools import SlotPhase, WayOut
from tests.operator_.decide.pools.nouns import POLICY, A, B, C, ago, granting, held, refusal, tenant
from tests.operator_.decide.pools.steps import ASLEEP, FAILED, RISING, SERVING, SILENT, STANDBY, step


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
