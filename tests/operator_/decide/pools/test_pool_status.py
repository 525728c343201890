"""What is told of a pool: its conditions, its slots, and what its slots and claims need."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dormouse_operator.decide.pools import claims
from dormouse_operator.decide.pools.budget import budget_bytes, grant_of, reserve_complaint
from dormouse_operator.decide.pools.conditions import allocated, fouled
from dormouse_operator.decide.pools.plan import plan_pool
from dormouse_operator.decide.pools.status import build_status
from dormouse_operator.decide.pools.tenants import tenant_of, tenants_on
from dormouse_operator.model import Container, DeviceGrant, Key, WorkerState
from dormouse_operator.model.pool_device import PoolDevice
from dormouse_operator.model.pool_observed import Member, PoolObserved, SlotClaim
from dormouse_operator.model.pools import Idleness, Pool, PoolPolicy, Sleeper, TenantState
from dormouse_operator.model.units import GIB
from dormouse_operator.testing.nouns import NOW, a_deployment, a_pod, a_report, a_worker
from tests.operator_.decide.pools.nouns import A, B, free, held
from tests.operator_.decide.pools.nouns import fouled as a_fouled

POOL = Pool(key=Key("team", "s"), uid="u", generation=1, device=PoolDevice("gpu.example.com"), num_slots=1)
OURS = SlotClaim(uid="c", is_ours=True)
TAKEN = replace(OURS, devices=("d/n1/gpu-0",), reserved_for=frozenset({"0", "1"}))


def on_slot(slot="s-0", **fields):
    return a_pod(pool="s", slot=slot, **fields)


def seen(*pods, pool=POOL, **fields):
    member = Member(key=A.key, deployment=a_deployment(key=A.key), pods=pods)
    return PoolObserved(pool=pool, now=NOW, members={A.key: member}, **fields)


@pytest.mark.parametrize(
    ("observed", "reason", "words"),
    [
        (seen(), "NoPods", "no member"),
        (seen(on_slot(uid="0"), claims={"s-0": replace(TAKEN, is_deleting=True)}), "ClaimGoes", "ResourceClaim s-0"),
        (seen(on_slot(), claims={"s-0": OURS}), "DevicesLost", "ResourceClaim s-0 does not count pod .* any more"),
        (
            seen(on_slot(is_scheduled=False, unscheduled_message="no GPU")),
            "WaitingForDevices",
            "slot s-0: pod .* has no node: no GPU",
        ),
        (seen(on_slot(is_scheduled=False)), "WaitingForDevices", "has no node$"),
        (seen(on_slot(is_scheduled=False, is_deleting=True)), "Allocated", "1 of 1 slots"),
        (seen(on_slot()), "Allocated", "1 of 1 slots"),
    ],
)
def test_allocated_names_the_slot_and_the_pod_that_wait(observed, reason, words):
    condition = allocated.evaluate(observed, Idleness())
    assert condition.reason == reason
    assert re.search(words, condition.message)


@pytest.mark.parametrize(
    ("slot", "words"),
    [
        (a_fouled(A, leaving=A), "the pod of team/a[0] cannot be ended"),
        (a_fouled(A), "team/a[0] may still have memory there"),
        (a_fouled(), "its record or its devices cannot be trusted"),
    ],
)
def test_a_fouled_slot_says_whose_memory_may_be_there(slot, words):
    assert words in fouled.words_of(slot)


def test_the_status_tells_node_and_devices_of_a_slot():
    observed = seen(on_slot(node="n1"), claims={"s-0": replace(OURS, devices=("d/n1/gpu-0",))})
    [slot] = build_status(observed, plan_pool(observed), {})["slots"]
    assert (slot["node"], slot["devices"]) == ("n1", ["d/n1/gpu-0"])
    assert observed.node_of("s-1") == ""


@pytest.mark.parametrize(
    ("known", "missing"),
    [({"s-0": SlotClaim()}, ["s-0"]), ({"s-0": OURS}, []), ({}, [])],
)
def test_a_claim_is_made_where_it_was_seen_that_there_is_none(known, missing):
    assert claims.missing(seen(claims=known)) == missing


@pytest.mark.parametrize(
    ("claim", "is_tainted", "deleted"),
    [
        (OURS, True, [("s-0", "c", True)]),
        (OURS, False, []),
        (replace(OURS, is_deleting=True), True, []),
        (replace(OURS, is_ours=False), True, []),
        (None, True, []),
    ],
    ids=["ours", "well", "goes already", "another's", "not seen"],
)
def test_a_claim_with_a_tainted_device_goes_and_nobody_elses_does(claim, is_tainted, deleted):
    pod = on_slot(is_deleting=True, has_tainted_device=is_tainted)
    assert claims.spoiled(seen(pod, claims={"s-0": claim} if claim else {})) == deleted


@pytest.mark.parametrize(
    ("claim", "is_robbed"),
    [
        (TAKEN, False),
        (replace(TAKEN, devices=()), True),
        (replace(TAKEN, reserved_for=frozenset({"another"})), True),
        (SlotClaim(), True),
        (None, False),
    ],
    ids=["counted", "deallocated", "not counted", "no claim", "not looked at"],
)
def test_a_slot_whose_claim_was_taken_from_its_pods_by_force_is_left_before_it_has_another(claim, is_robbed):
    serves = a_worker(grant=DeviceGrant(slot="s-0", slot_epoch=1))
    observed = seen(on_slot(uid="0"), answers={"0": serves}, claims={"s-0": claim} if claim else {})
    observed = replace(observed, pool=replace(POOL, slots=(held(A, name="s-0"),)))
    assert (observed.robbed_pod("s-0") is not None) is is_robbed
    [slot] = plan_pool(observed).slots
    assert (slot.leaving == A) is is_robbed
    assert claims.missing(observed) == []
    assert claims.spoiled(observed) == ([("s-0", "c", True)] if is_robbed and claim.uid else [])


@pytest.mark.parametrize("fields", [{"is_scheduled": False}, {"is_deleting": True}, {"has_ended": True}])
def test_a_pod_that_has_no_device_yet_or_goes_is_not_robbed(fields):
    assert seen(on_slot(**fields), claims={"s-0": OURS}).robbed_pod("s-0") is None


def test_a_pool_that_goes_gets_no_claims():
    assert claims.missing(seen(pool=replace(POOL, is_deleting=True), claims={"s-0": SlotClaim()})) == []


@pytest.mark.parametrize(
    ("slot", "claim", "pods", "surplus"),
    [
        (free("s-1"), OURS, (), [("s-1", "c", False)]),
        (free("s-1"), replace(OURS, is_deleting=True), (), []),
        (free("s-1"), replace(OURS, is_ours=False), (), []),
        (free("s-1"), SlotClaim(), (), []),
        (free("s-1"), OURS, (on_slot("s-1"),), []),
        (held(A, name="s-1"), OURS, (), []),
        (free("s-0"), OURS, (), []),
    ],
)
def test_a_claim_goes_with_its_slot_once_nothing_is_there_and_nobody_elses_does(slot, claim, pods, surplus):
    assert claims.surplus(seen(*pods, claims={slot.name: claim}), [slot]) == surplus


def test_a_slot_whose_claim_was_not_looked_at_is_no_leftover():
    assert not claims.is_leftover(seen(), free("s-1"))


def measured(*total_bytes, slots=("s-0", "s-1")):
    """Return a pool on whose slots these were measured, 0 for a worker that has not."""
    pods = [on_slot(slot, index=index, uid=str(index)) for index, slot in enumerate(slots[: len(total_bytes)])]
    reports = (a_report(total_bytes=total) if total else None for total in total_bytes)
    answers = {str(index): a_worker(report=found) for index, found in enumerate(reports)}
    policy = PoolPolicy(max_members_per_slot=2, sleeper_reserve_bytes=GIB)
    return seen(*pods, pool=replace(POOL, num_slots=2, policy=policy), answers=answers)


@pytest.mark.parametrize(
    ("totals", "budget"),
    [
        ((), 0),
        ((0, 0), 0),
        ((10 * GIB, 20 * GIB), 7 * GIB),
        ((0, 20 * GIB), 16 * GIB),
        ((2 * GIB, 20 * GIB), 1),
    ],
)
def test_a_budget_is_what_the_own_device_has_beside_sleepers_or_the_least_device_of_the_pool(totals, budget):
    assert budget_bytes(measured(*totals), free("s-0"), a_deployment()) == budget


def test_what_was_measured_before_the_pods_went_bounds_the_first_engine_of_those_that_come():
    observed = measured(0, 0)
    recorded = replace(observed, pool=replace(observed.pool, device_bytes=10 * GIB))
    assert budget_bytes(recorded, free("s-0"), a_deployment()) == 7 * GIB
    assert build_status(recorded, plan_pool(recorded), {})["deviceBytes"] == 10 * GIB
    assert build_status(measured(20 * GIB), plan_pool(observed), {})["deviceBytes"] == 20 * GIB
    assert build_status(observed, plan_pool(observed), {})["deviceBytes"] is None


@pytest.mark.parametrize(("total", "reason"), [(0, "Allocated"), (3 * GIB, "Allocated"), (2 * GIB, "ReserveTooLarge")])
def test_a_pool_that_keeps_all_of_a_device_for_sleepers_says_so(total, reason):
    assert allocated.evaluate(measured(total), Idleness()).reason == reason


def test_it_says_so_with_the_numbers():
    product = "spec.maxMembersPerSlot 2 x spec.sleeperReserve 1 GiB = 2 GiB are kept for sleepers"
    rest = "and of a device with 2 GiB 1.8 GiB can be used: lower one of the two"
    assert reserve_complaint(measured(2 * GIB)) == f"{product}, {rest}"


def test_what_a_sleeper_leaves_beyond_its_reserve_is_taken_off():
    slot = free("s-0", sleepers=(Sleeper(replica=B, level=1, residual_bytes=3 * GIB),))
    assert budget_bytes(measured(10 * GIB), slot, a_deployment()) == 5 * GIB


@pytest.mark.parametrize(
    ("granted", "is_oversized"),
    [
        ({}, True),
        ({"budget_bytes": 7 * GIB + 1}, True),
        ({"budget_bytes": 7 * GIB}, False),
        ({"budget_bytes": GIB}, False),
        ({"reserved_bytes": 2 * GIB}, False),
        ({"reserved_bytes": 2 * GIB - 1}, True),
        ({"reserved_bytes": 2 * GIB, "awake_per_slot": 0}, True),
    ],
)
def test_an_engine_is_oversized_whose_grant_bounds_it_less_than_one_of_now(granted, is_oversized):
    observed = measured(10 * GIB)
    observed = replace(observed, pool=replace(observed.pool, slots=(held(A, name="s-0"),)))
    grant = DeviceGrant(slot="s-0", slot_epoch=1, **granted)
    observed = replace(observed, answers={"0": replace(observed.answers["0"], grant=grant)})
    [member] = observed.members.values()
    assert tenant_of(observed, member, member.pods[0]).is_oversized is is_oversized


@pytest.mark.parametrize(("slots", "deployment"), [((), a_deployment()), ((held(A, name="s-0"),), None)])
def test_nothing_is_said_of_the_size_of_an_engine_that_cannot_be_compared(slots, deployment):
    observed = measured(10 * GIB)
    grant = DeviceGrant(slot="s-0", slot_epoch=1)
    worker = replace(observed.answers["0"], grant=grant)
    pod = on_slot("s-0", uid="0")
    member = Member(key=A.key, deployment=deployment, pods=(pod,))
    pool = replace(observed.pool, slots=slots)
    seen_so = replace(observed, pool=pool, members={A.key: member}, answers={"0": worker})
    assert not tenant_of(seen_so, member, pod).is_oversized


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_pods_of_a_replica_the_one_that_may_hold_more_counts(order):
    pods = (on_slot(uid="0", is_deleting=True), on_slot(uid="1"))[::order]
    observed = seen(*pods, answers={"0": a_worker(), "1": a_worker(WorkerState.STANDBY)})
    assert tenants_on(observed, "s-0")[A].state is TenantState.SERVING


def test_pods_leave_a_slot_whose_claim_goes_but_for_those_that_wait_for_the_next_one():
    stays = on_slot(index=1, uid="1", ip="", container=Container(), is_scheduled=False)
    asleep = a_worker(WorkerState.STANDBY)
    observed = seen(on_slot(uid="0"), stays, answers={"0": asleep}, claims={"s-0": replace(OURS, is_deleting=True)})
    plan = plan_pool(observed)
    assert [str(command.replica) for command in plan.commands] == ["team/a[0]"]
    assert all(not demand.places for demand in plan.demands.values())


def test_a_slot_that_is_not_wanted_is_recorded_until_its_claim_is_gone():
    pool = replace(POOL, slots=(free("s-0"), free("s-1")))
    assert [slot.name for slot in plan_pool(seen(pool=pool, claims={"s-1": OURS})).slots] == ["s-0", "s-1"]
    assert [slot.name for slot in plan_pool(seen(pool=pool, claims={"s-1": SlotClaim()})).slots] == ["s-0"]


@pytest.mark.parametrize(
    ("known", "device"),
    [
        ({}, ""),
        ({"s-0": OURS}, ""),
        ({"s-0": replace(OURS, devices=("d/n/gpu-1",)), "s-1": replace(OURS, devices=("d/n/gpu-0",))}, "d/n/gpu-1"),
        ({"s-0": replace(OURS, devices=("d/n/gpu-2", "d/n/gpu-3"))}, "d/n/gpu-2,d/n/gpu-3"),
    ],
    ids=["not looked at", "not allocated", "one", "two in a slot"],
)
def test_a_grant_names_the_devices_of_its_slots_claim(known, device):
    grant = grant_of(seen(claims=known), free("s-0", epoch=5), a_deployment())
    assert (grant.slot, grant.slot_epoch, grant.device) == ("s-0", 5, device)
