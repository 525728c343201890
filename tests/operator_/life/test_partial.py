"""A deployment of several replicas wakes in part: one for the first request, more as the load asks for them."""

from __future__ import annotations

import pytest

from dormouse_kube.api import DISRUPTION_BUDGETS, INFERENCE_DEPLOYMENTS, PODS
from dormouse_operator.model import WorkerState
from tests.operator_.ladders import LADDER, asleep, awake, states, tell, wake

SCALING = {"minReplicas": 1, "maxReplicas": 8, "targetOutstandingPerReplica": 10}


async def woken(rig, rung="Level1", **spec):
    """Sleep, and be woken by one request."""
    await asleep(rig, rung, **spec)
    rig.clock.step(100)
    wake(rig)
    tell(rig, in_flight=1, held=1)
    await rig.until_profiled()
    await rig.settle()


async def test_the_first_request_wakes_one_replica_and_the_status_says_so(rig):
    await woken(rig)
    assert states(rig) == [WorkerState.READY, *[WorkerState.ASLEEP] * 3]
    assert rig.condition("Ready") == (
        "True",
        "Serving",
        "1 of 4 replicas serve; 3 sleep until the load asks for more",
    )
    assert rig.condition("Available") == ("True", "Serving", "1 of 4 replicas serve")
    assert rig.condition("Asleep")[:2] == ("False", "Awake")
    assert rig.condition("Progressing")[:2] == ("True", "Complete")
    assert rig.condition("CacheAllocated")[:2] == ("True", "Allocated")
    assert (rig.status["phase"], rig.status["replicas"]) == ("Active", 4)
    assert (rig.status["readyReplicas"], rig.status["sleepingReplicas"]) == (1, 3)
    assert rig.status["lifecycle"]["awakeReplicas"] == 1
    assert "Woke: awake from level 1 in 0.25 s; 3 sleep until the load asks for more" in rig.events


async def test_more_are_woken_as_the_load_asks_for_them_and_none_sleeps_again_while_it_is_called(rig):
    await woken(rig, scaling=SCALING)
    tell(rig, in_flight=25)
    await rig.settle()
    assert awake(rig) == 3
    assert (rig.status["lifecycle"]["awakeReplicas"], rig.status["lifecycle"]["reason"]) == (3, "load")
    assert rig.status["lastActuation"]["reason"] == "load"
    tell(rig, in_flight=1)
    await rig.settle()
    assert awake(rig) == 3
    tell(rig, in_flight=40)
    await rig.settle()
    assert awake(rig) == 4
    assert "awakeReplicas" not in rig.status["lifecycle"]
    assert rig.condition("Ready")[2] == "4 of 4 replicas serve"
    assert rig.errors == []


async def test_the_load_is_looked_at_again_while_replicas_sleep_and_not_once_all_are_awake(rig):
    await woken(rig)
    tell(rig, in_flight=1)
    assert await rig.reconcile() == 5
    rig.kube.calls.clear()
    await rig.reconcile()
    assert rig.kube.mutations() == []
    tell(rig, in_flight=1000)
    await rig.settle()
    assert awake(rig) == 4
    assert await rig.reconcile() == 600


async def test_a_burst_that_is_held_wakes_as_many_at_once_as_it_needs(rig):
    await asleep(rig, scaling=SCALING)
    wake(rig)
    tell(rig, in_flight=30, held=30)
    await rig.settle()
    assert awake(rig) == 3
    assert rig.status["lifecycle"]["reason"] == "request"


async def test_a_load_that_is_not_known_wakes_one_and_no_more(rig):
    await asleep(rig)
    rig.activities.expect("b:1")
    wake(rig)
    await rig.settle()
    assert awake(rig) == 1
    rig.activities.drop("b:1")
    tell(rig, in_flight=1000)
    await rig.settle()
    assert awake(rig) == 4


async def test_an_order_to_serve_wakes_all(rig):
    await woken(rig)
    rig.apply(lifecycle={**LADDER, "desiredState": "Active"})
    await rig.settle()
    assert awake(rig) == 4


async def test_who_refuses_to_wake_keeps_no_request_waiting_as_another_one_is_woken(rig):
    await asleep(rig)
    rig.worker(0).missing_bytes = rig.worker(1).missing_bytes = 2**30
    wake(rig)
    tell(rig, in_flight=1, held=1)
    await rig.settle()
    assert states(rig).index(WorkerState.READY) == 2
    assert awake(rig) == 1
    assert rig.status["phase"] == "Active"
    assert rig.condition("Degraded")[1] == "AsExpected"


async def test_when_the_one_that_serves_goes_another_one_wakes_though_its_successor_loads(rig):
    await woken(rig)
    await rig.kube.delete(PODS, "team", rig.pods[0])
    await rig.settle()
    assert awake(rig) == 1
    assert WorkerState.LOADING in states(rig)
    await rig.until_profiled()
    await rig.settle()
    assert awake(rig) == 2, "who has loaded serves"
    assert rig.status["phase"] == "Active"


async def test_an_operator_that_starts_anew_leaves_it_as_it_is(rig):
    await woken(rig)
    before = rig.status
    rig.restart_operator()
    rig.kube.calls.clear()
    await rig.settle()
    tell(rig, in_flight=1)
    await rig.settle()
    assert (rig.status, rig.kube.mutations()) == (before, [])


async def test_it_sleeps_again_as_a_whole_and_the_next_request_wakes_one_again(rig):
    await woken(rig)
    tell(rig, in_flight=1000)
    await rig.settle()
    tell(rig)
    while rig.status["lifecycle"]["rung"] != "Level2":
        rig.clock.step(await rig.reconcile())
        await rig.settle()
    assert rig.condition("Asleep")[2].startswith("idle for 1800 s: 4 of 4 workers are asleep at level 2")
    wake(rig)
    tell(rig, in_flight=1, held=1)
    await rig.settle()
    assert awake(rig) == 1
    assert rig.status["lastActuation"]["path"] == "level2"


async def test_from_no_pod_one_comes_back_and_the_others_with_the_load(rig):
    await woken(rig, "Zero")
    assert (len(rig.pods), awake(rig)) == (1, 1)
    assert rig.condition("Ready")[2] == "1 of 4 replicas serve; 3 have no pod until the load asks for more"
    assert rig.condition("Available")[2] == "1 of 4 replicas serve"
    assert (rig.status["lifecycle"]["awakeReplicas"], rig.status["lifecycle"]["presentReplicas"]) == (1, 1)
    assert rig.status["phase"] == "Active"
    tell(rig, in_flight=64)
    await rig.until_profiled()
    await rig.settle()
    assert (len(rig.pods), awake(rig)) == (2, 2)
    tell(rig, in_flight=1000)
    await rig.until_profiled()
    await rig.settle()
    assert (len(rig.pods), awake(rig)) == (4, 4)
    assert "presentReplicas" not in rig.status["lifecycle"]


async def test_what_came_back_in_part_sleeps_without_new_pods_and_wakes_as_before(rig):
    await woken(rig, "Zero")
    pods = rig.pods
    tell(rig)
    while rig.status["lifecycle"]["rung"] != "Level1":
        rig.clock.step(await rig.reconcile())
        await rig.settle()
    assert (rig.pods, rig.status["phase"]) == (pods, "Asleep")
    wake(rig)
    tell(rig, in_flight=1, held=1)
    await rig.settle()
    assert (rig.pods, awake(rig)) == (pods, 1)


async def test_the_scaler_takes_over_once_all_replicas_are_awake(rig):
    await woken(rig, "Zero", replicas=2, scaling=SCALING)
    assert repr(rig.scaler) == "Scaler()", "its replicas are not those of the spec"
    tell(rig, in_flight=60)
    await rig.until_profiled()
    await rig.settle()
    await rig.scaler.step()
    assert rig.kube.peek(INFERENCE_DEPLOYMENTS, *rig.key)["spec"]["replicas"] == 6


@pytest.mark.parametrize(
    ("rollout", "place"),
    [
        ({"strategy": "Surge"}, 3),
        ({"strategy": "Surge", "maxSurge": 0, "maxUnavailable": 1}, 3),
        ({"strategy": "SleepSwap"}, 0),
    ],
    ids=["surge", "one less", "swap"],
)
async def test_a_new_spec_rolls_out_while_replicas_sleep_and_who_serves_goes_last(rig, rollout, place):
    await asleep(rig, rollout=rollout)
    for other in range(place):
        rig.worker(other).missing_bytes = 2**30
    wake(rig)
    await rig.settle()
    first = rig.worker(place)
    assert first.state is WorkerState.READY
    rig.apply(engine={"device": "cpu", "maxNumSeqs": 3})
    for _ in range(60):
        rig.node.tick()
        rig.finish_loading()
        await rig.reconcile()
        assert rollout != {"strategy": "Surge"} or rig.condition("Ready")[0] == "True"
        others = [worker for worker in rig.workers.workers.values() if worker is not first]
        if not any(worker.state is WorkerState.READY for worker in others):
            assert first.state is WorkerState.READY
            assert first.settings_digest == first.first_digest
    assert (len(rig.pods), rig.status["phase"]) == (4, "Active")
    assert rig.condition("Progressing")[:2] == ("True", "Complete")
    assert len({pod.rsplit("-", 1)[0] for pod in rig.pods}) == 1
    assert {worker.settings_digest for worker in rig.workers.workers.values()} != {first.first_digest}


async def test_sleeping_replicas_keep_no_node_from_being_drained(rig):
    await woken(rig)
    (budget,) = rig.kube.everything(DISRUPTION_BUDGETS)
    assert budget["spec"]["maxUnavailable"] == 4
    tell(rig, in_flight=1000)
    await rig.settle()
    (budget,) = rig.kube.everything(DISRUPTION_BUDGETS)
    assert budget["spec"]["maxUnavailable"] == 1


async def test_replicas_without_a_pod_keep_no_node_from_being_drained(rig):
    """Kubernetes takes what must stay from the replicas of the spec, whether or not they have pods."""
    await woken(rig, "Zero")
    tell(rig, in_flight=64)
    await rig.until_profiled()
    await rig.settle()
    (budget,) = rig.kube.everything(DISRUPTION_BUDGETS)
    assert (len(rig.pods), budget["spec"]["maxUnavailable"]) == (2, 3)


async def test_a_larger_scale_brings_new_replicas_beside_those_that_sleep(rig):
    await woken(rig)
    rig.apply(replicas=5)
    await rig.until_profiled()
    await rig.settle()
    assert (awake(rig), len(rig.pods)) == (2, 5)
    rig.apply(replicas=1)
    await rig.settle()
    assert (awake(rig), len(rig.pods)) == (1, 1)
