"""Spare pods: some of the replicas that have none have one in STANDBY, and the next wake starts an engine there."""

from __future__ import annotations

import pytest

from dormouse_kube.api import DISRUPTION_BUDGETS, INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.errors import Forbidden
from dormouse_operator.model import WorkerState
from dormouse_operator.model.units import GIB
from dormouse_operator.parse import parse_pod
from tests.operator_.kit import NEW, passes, revisions, serving, uids
from tests.operator_.ladders import states, tell, until_due, wake

SPARES = {"spares": 1, "level1AfterSeconds": None, "zeroAfterSeconds": 600}
STANDBY, READY, LOADING = WorkerState.STANDBY, WorkerState.READY, WorkerState.LOADING


async def empty(rig, *, lifecycle=SPARES, **spec):
    """Serve, and go down to Zero."""
    await rig.serving(lifecycle=lifecycle, **spec)
    tell(rig)
    while rig.status.get("lifecycle", {}).get("rung") != "Zero":
        await until_due(rig)


async def called(rig, in_flight=1):
    """Ask for a wake, let what starts load, and let what follows happen."""
    wake(rig)
    tell(rig, in_flight=in_flight, held=in_flight)
    await rig.settle()
    rig.clock.step(20)
    rig.finish_loading()
    await rig.settle()


def memory(rig):
    return parse_pod(rig.kube.everything(PODS)[0]).memory


async def test_at_zero_a_spare_pod_stands_by_and_everything_says_so(rig):
    await empty(rig, replicas=3)
    assert states(rig) == [STANDBY]
    told = rig.status
    assert (told["phase"], told["replicas"], told["sleepingReplicas"], told["spareReplicas"]) == ("Zero", 0, 0, 1)
    assert rig.condition("Ready") == ("True", "Zero", "idle for 600 s: no pod but 1 spare; a request brings them back")
    assert rig.condition("Degraded")[:2] == ("False", "AsExpected")
    assert b'dormouse_spare_replicas{deployment="tiny",namespace="team"} 1.0' in rig.metrics.render()
    assert rig.errors == []


async def test_a_request_starts_an_engine_in_the_spare_and_no_other_pod(rig):
    await empty(rig)
    before = uids(rig)
    rig.clock.step(30_000)
    await called(rig)
    assert (uids(rig), states(rig)) == (before, [READY])
    assert (rig.status["phase"], rig.status["replicas"], rig.status["spareReplicas"]) == ("Active", 1, 0)
    woken = rig.status["lastActuation"]
    assert (woken["path"], woken["seconds"], woken["reason"]) == ("level3", 20.0, "request")
    assert serving(rig) == rig.pods
    assert rig.errors == []


async def test_while_a_part_serves_the_next_replica_has_the_spare_and_more_load_wakes_it(rig):
    await empty(rig, replicas=3)
    await called(rig)
    assert states(rig) == [READY, STANDBY]
    assert (rig.condition("Ready")[1], rig.status["replicas"], rig.status["spareReplicas"]) == ("Serving", 1, 1)
    before = uids(rig)
    tell(rig, in_flight=60, awake_workers=1)
    await rig.settle()
    assert before < uids(rig)
    rig.finish_loading()
    await rig.settle()
    assert states(rig) == [READY, READY, STANDBY]
    tell(rig, in_flight=1000, awake_workers=2)
    await rig.settle()
    rig.finish_loading()
    await rig.settle()
    assert (states(rig), rig.status["spareReplicas"]) == ([READY] * 3, 0)


async def test_a_spare_that_waits_is_none_of_the_replicas_that_sleep_beside_those_that_serve(rig):
    await empty(rig, replicas=4)
    await called(rig, in_flight=60)
    assert states(rig) == [READY, READY, STANDBY]
    assert rig.told.situation.spares == frozenset()
    (budget,) = rig.kube.everything(DISRUPTION_BUDGETS)
    assert budget["spec"]["maxUnavailable"] == 1 + 2, "one, and two of four that are away"


async def test_several_spares_wake_one_by_one(rig):
    await empty(rig, lifecycle={**SPARES, "spares": 2}, replicas=3)
    assert states(rig) == [STANDBY, STANDBY]
    await called(rig)
    assert states(rig) == [READY, STANDBY, STANDBY]


async def test_pods_that_stood_by_already_become_the_spares(rig):
    levels = {**SPARES, "level3AfterSeconds": 300}
    await rig.serving(lifecycle=levels, replicas=2)
    tell(rig)
    while rig.status.get("lifecycle", {}).get("rung") != "Level3":
        await until_due(rig)
    before = uids(rig)
    await until_due(rig)
    assert (rig.status["phase"], states(rig)) == ("Zero", [STANDBY])
    assert uids(rig) < before
    await called(rig)
    assert uids(rig) & before


async def test_a_roll_out_replaces_the_spare_before_anybody_calls(rig):
    await empty(rig)
    old, before = revisions(rig), uids(rig)
    rig.apply(engine=NEW)
    await rig.settle()
    assert (rig.status["phase"], states(rig)) == ("Zero", [STANDBY])
    assert revisions(rig).isdisjoint(old)
    assert uids(rig).isdisjoint(before)
    await called(rig)
    assert serving(rig) == rig.pods


async def test_a_roll_out_beside_a_spare_ends_with_a_spare_of_its_own(rig):
    await empty(rig, replicas=2)
    await called(rig)
    old = revisions(rig)
    rig.apply(engine=NEW)
    for _ in range(6):
        await rig.settle()
        rig.finish_loading()
        rig.clock.step(5)
    assert (states(rig), rig.condition("Progressing")[:2]) == ([READY, STANDBY], ("True", "Complete"))
    assert revisions(rig).isdisjoint(old)


@pytest.mark.parametrize("lifecycle", [{**SPARES, "spares": 0}, {**SPARES, "desiredState": "Zero"}])
async def test_spares_that_nobody_wants_any_more_go(rig, lifecycle):
    await empty(rig)
    rig.apply(lifecycle=lifecycle)
    await rig.settle()
    assert (rig.pods, rig.status["phase"]) == ([], "Zero")


async def test_a_deployment_that_is_deleted_makes_no_more_spares(rig):
    await empty(rig)
    rig.kube.edit(INFERENCE_DEPLOYMENTS, *rig.key, lambda obj: obj["metadata"].update(deletionTimestamp="now"))
    rig.kube.finish_deletion(PODS, rig.key.namespace, rig.pods[0])
    await rig.settle()
    assert rig.pods == []


async def test_an_operator_that_starts_anew_leaves_spares_as_they_are(rig):
    await empty(rig)
    before = (uids(rig), rig.status)
    rig.restart_operator()
    tell(rig)
    rig.kube.calls.clear()
    await rig.settle()
    assert (uids(rig), rig.status) == before
    assert rig.kube.mutations() == []


async def test_a_spare_whose_worker_starts_an_engine_by_itself_is_put_in_standby(rig):
    await empty(rig)
    before = uids(rig)
    rig.worker().restart()
    rig.worker().state = LOADING
    await rig.settle()
    assert (uids(rig), states(rig)) == (before, [STANDBY])
    assert "sleep 3" in rig.worker().commands


async def test_a_spare_that_cannot_serve_stays_and_says_why_when_it_is_woken(rig):
    await empty(rig)
    before = uids(rig)
    rig.worker().fail("ModelNotFound", "no such directory")
    await rig.settle()
    assert (uids(rig), rig.status["spareReplicas"]) == (before, 0)
    wake(rig)
    await rig.settle()
    assert rig.condition("Ready")[:2] == ("False", "ModelNotFound")


async def test_a_woken_spare_whose_container_starts_anew_is_woken_again(rig):
    await empty(rig)
    await called(rig)
    rig.clock.step(100)
    rig.node.crash(rig.pods[0], exit_code=137)
    assert rig.worker().state is STANDBY
    rig.node.tick()
    assert serving(rig) == [], "ready by its probe and its gate, and without an engine"
    await rig.settle()
    rig.finish_loading()
    await rig.settle()
    assert serving(rig) == rig.pods


async def test_a_spare_that_a_quota_refuses_is_told_by_name(rig):
    await empty(rig)
    name = rig.pods[0]
    rig.kube.finish_deletion(PODS, rig.key.namespace, name)
    rig.kube.fail("create", PODS, Forbidden("exceeded quota"), times=3)
    await passes(rig, 3)
    assert rig.condition("Scheduled") == ("False", "ChildRejected", f"Pod {name}: exceeded quota")
    assert rig.condition("Ready")[:2] == ("True", "Zero")
    await rig.settle()
    assert rig.status["spareReplicas"] == 1


async def test_a_spare_that_a_quota_refuses_keeps_nobody_from_serving(rig):
    await empty(rig, replicas=2)
    wake(rig)
    rig.kube.fail("create", PODS, Forbidden("exceeded quota"), times=10)
    tell(rig, in_flight=1, held=1)
    await passes(rig, 8)
    assert (states(rig), rig.condition("Ready")[:2]) == ([READY], ("True", "Serving"))
    assert rig.condition("Degraded")[0] == "False"


async def test_a_spare_asks_for_less_memory_and_has_all_back_before_it_wakes(rig):
    model, lifecycle = {"uri": "pvc://models/tiny", "size": "16Gi"}, {**SPARES, "shrinkRequests": True}
    await empty(rig, model=model, lifecycle=lifecycle)
    assert memory(rig).allocated_bytes == GIB
    await called(rig)
    assert memory(rig).allocated_bytes > 16 * GIB
    assert states(rig) == [READY]
