"""What a pod is to its slot: every field from its source, and nothing from anybody else's words."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from dormouse_operator.decide.pools.tenants import tenant_of, tenants_on
from dormouse_operator.model import Container, DeviceGrant, Key, WorkerState
from dormouse_operator.model.pool_device import PoolDevice
from dormouse_operator.model.pool_observed import Member, PoolObserved
from dormouse_operator.model.pools import Pool, PoolPolicy, Replica, Tenant, TenantState
from dormouse_operator.testing.nouns import NOW, a_deployment, a_pod, a_report, a_worker
from tests.operator_.decide.pools.nouns import A, ago, held

POOL = Pool(key=Key("team", "s"), uid="u", generation=1, device=PoolDevice("gpu.example.com"), num_slots=1)
GRANT = DeviceGrant(slot="s-0", slot_epoch=9)


def on_slot(**fields):
    return a_pod(pool="s", slot="s-0", **fields)


def told(pod, worker=None, *, deployment=None, pool=POOL, **fields):
    """Return the tenant that a pod with this worker is; None = it does not answer."""
    member = Member(key=A.key, deployment=deployment, pods=(pod,))
    answers = {pod.uid: worker} if worker else {}
    return tenant_of(PoolObserved(pool=pool, now=NOW, members={A.key: member}, answers=answers, **fields), member, pod)


def test_every_field_is_what_pod_and_worker_say():
    worker = a_worker(
        WorkerState.DRAINING,
        instance="i",
        grant=GRANT,
        running_requests=3,
        request_counter=4,
        residual_bytes=5,
        refused_slot_epoch=6,
        missing_bytes=7,
        engine_failed=ago(8),
    )
    pod = on_slot(index=2, is_deleting=True, has_lost_node=True)
    assert told(pod, worker, silent_s={pod.uid: 5.0}) == Tenant(
        replica=Replica(A.key, 2),
        state=TenantState.DRAINING,
        instance="i",
        gate_open=True,
        running_requests=3,
        request_counter=4,
        residual_bytes=5,
        grant_epoch=9,
        refused_epoch=6,
        missing_bytes=7,
        engine_failed=ago(8),
        is_oversized=False,
        silent_s=0.0,
        is_deleting=True,
        has_lost_node=True,
    )


def test_of_a_pod_whose_worker_is_silent_nothing_is_known_but_for_how_long():
    pod = on_slot(gate_open=False)
    assert told(pod, silent_s={pod.uid: 5.0}) == Tenant(replica=A, state=TenantState.SILENT, silent_s=5.0)
    assert told(pod, silent_s={"another": 5.0}) == Tenant(replica=A, state=TenantState.SILENT, silent_s=0.0)


@pytest.mark.parametrize(("heard", "told_itself", "epoch"), [(0, 0, 0), (5, 0, 5), (5, 6, 6), (6, 5, 6)])
def test_a_refusal_counts_whoever_remembers_it(heard, told_itself, epoch):
    refused = {A: heard, Replica(A.key, 1): 99} if heard else {}
    assert told(on_slot(), a_worker(refused_slot_epoch=told_itself), refused=refused).refused_epoch == epoch


def test_a_grant_of_another_slot_is_none():
    assert told(on_slot(), a_worker(grant=replace(GRANT, slot="s-1"))).grant_epoch == 0
    assert told(on_slot(), a_worker()).grant_epoch == 0


@pytest.mark.parametrize(
    ("worker", "state"),
    [
        (WorkerState.STANDBY, TenantState.STANDBY),
        (WorkerState.ASLEEP, TenantState.ASLEEP),
        (WorkerState.READY, TenantState.SERVING),
        (WorkerState.DRAINING, TenantState.DRAINING),
        (WorkerState.FAILED, TenantState.FAILED),
        (WorkerState.STARTING, TenantState.RISING),
        (WorkerState.LOADING, TenantState.RISING),
        (WorkerState.PROFILED, TenantState.RISING),
        (WorkerState.INITIALIZING, TenantState.RISING),
        (WorkerState.WAKING, TenantState.RISING),
    ],
)
def test_a_tenant_is_in_its_workers_state(worker, state):
    assert told(on_slot(), a_worker(worker)).state is state


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"ip": ""}, TenantState.ABSENT),
        ({"container": Container(is_running=False)}, TenantState.ABSENT),
        ({"has_ended": True}, TenantState.ABSENT),
        ({"has_ended": True, "has_lost_node": True}, TenantState.SILENT),
        ({"ip": "", "has_lost_node": True}, TenantState.SILENT),
        ({"has_lost_node": True}, TenantState.SERVING),
    ],
)
def test_a_pod_without_a_running_container_has_nothing_unless_nobody_sees_it(fields, state):
    assert told(on_slot(**fields), a_worker()).state is state


MORE_AND_MORE = [None, WorkerState.STANDBY, WorkerState.ASLEEP, WorkerState.LOADING]  # None: no container


def a_replica_of_two_pods(first, second):
    """Return the state that counts of a replica with two pods in these states."""
    states = {"0": first, "1": second}
    pods = tuple(on_slot(uid=uid, ip="1.2.3.4" if state else "") for uid, state in states.items())
    answers = {uid: a_worker(state) for uid, state in states.items() if state}
    member = Member(key=A.key, pods=pods)
    observed = PoolObserved(pool=POOL, now=NOW, members={A.key: member}, answers=answers)
    return tenants_on(observed, "s-0")[A].state, [tenant_of(observed, member, pod).state for pod in pods]


@pytest.mark.parametrize("states", [*combinations(MORE_AND_MORE, 2)])
def test_of_two_pods_of_a_replica_the_one_that_may_hold_more_counts(states):
    found, (_, more) = a_replica_of_two_pods(*states)
    assert found is more
    found, (more, _) = a_replica_of_two_pods(*reversed(states))
    assert found is more


def test_of_two_pods_that_may_hold_as_much_the_first_counts():
    first, second = WorkerState.READY, WorkerState.DRAINING
    assert a_replica_of_two_pods(first, second)[0] is TenantState.SERVING
    assert a_replica_of_two_pods(second, first)[0] is TenantState.DRAINING


@pytest.mark.parametrize("state", [WorkerState.STANDBY, WorkerState.ASLEEP])
def test_who_is_silent_may_hold_more_than_a_sleeper(state):
    pods = (on_slot(uid="0"), on_slot(uid="1"))
    member = Member(key=A.key, pods=pods)
    observed = PoolObserved(pool=POOL, now=NOW, members={A.key: member}, answers={"0": a_worker(state)})
    assert tenants_on(observed, "s-0")[A].state is TenantState.SILENT


@pytest.mark.parametrize(("granted", "is_oversized"), [(-1, True), (0, True), (1, False), (2, True)])
def test_an_engine_may_not_take_more_than_one_of_now_could(granted, is_oversized):
    """Of a device without room beside its sleepers one byte is left."""
    policy = PoolPolicy(max_members_per_slot=2, sleeper_reserve_bytes=1 << 30)
    pool = replace(POOL, policy=policy, slots=(held(A, name="s-0"),))
    worker = a_worker(grant=replace(GRANT, budget_bytes=granted), report=a_report(total_bytes=1 << 30))
    found = told(on_slot(), worker, deployment=a_deployment(key=A.key), pool=pool)
    assert found.is_oversized is is_oversized


def test_without_a_budget_no_engine_takes_too_much():
    pool = replace(POOL, slots=(held(A, name="s-0"),))
    assert not told(on_slot(), a_worker(grant=GRANT), deployment=a_deployment(key=A.key), pool=pool).is_oversized
