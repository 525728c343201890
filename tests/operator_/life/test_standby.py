"""The rung between level 2 and no pod: in STANDBY a pod has its front and nothing else; a request starts an engine."""

from __future__ import annotations

import pytest

from dormouse_operator.model import WorkerState
from tests.operator_.ladders import awake, idle, rungs, states, tell, until_due, wake

LADDER = {"level1AfterSeconds": 600, "level3AfterSeconds": 3600, "zeroAfterSeconds": 7200}


async def standing_by(rig, replicas=1, **lifecycle):
    """Serve, and go down to Level3."""
    await rig.serving(lifecycle={**LADDER, **lifecycle}, replicas=replicas)
    tell(rig)
    while rig.status.get("lifecycle", {}).get("rung") != "Level3":
        await until_due(rig)


async def started(rig):
    """Let the engines load that were started, and what follows happen."""
    await rig.settle()
    rig.clock.step(20)
    rig.finish_loading()
    await rig.settle()


async def test_the_ladder_ends_the_engine_and_everything_says_so(rig):
    begin = rig.clock()
    await standing_by(rig, replicas=2)
    assert (rig.clock() - begin).total_seconds() == 3600
    assert states(rig) == [WorkerState.STANDBY] * 2
    assert (rig.status["phase"], rig.status["sleepingReplicas"]) == ("Asleep", 2)
    assert rig.condition("Ready")[:2] == ("True", "Asleep")
    assert rig.condition("Asleep")[2].startswith("idle for 3600 s: 2 of 2 workers are asleep at level 3")
    assert rig.condition("ModelLoaded")[:2] == ("Unknown", "Standby")
    assert rig.condition("SleepVerified")[:2] == ("True", "Verified")
    await until_due(rig)
    assert (rig.pods, rig.status["phase"]) == ([], "Zero")


async def test_a_request_starts_an_engine_which_is_a_wake_from_level_3(rig):
    await standing_by(rig)
    rig.clock.step(100)
    wake(rig)
    await rig.settle()
    assert rig.condition("Asleep")[:2] == ("False", "EngineStarts")
    assert rig.condition("Ready")[:2] == ("False", "EngineStarts")
    await started(rig)
    assert rig.status["phase"] == "Active"
    told = rig.status["lastActuation"]
    assert (told["path"], told["seconds"], told["reason"]) == ("level3", 20.0, "request")
    assert rungs(rig)[-1] == "Woke: awake from level 3 in 20.00 s"
    assert rig.errors == []


async def test_an_operator_that_comes_new_in_the_middle_goes_on_with_the_wake(rig):
    await standing_by(rig)
    wake(rig)
    await rig.settle()
    rig.restart_operator()
    tell(rig, in_flight=1, held=1)
    await started(rig)
    assert rig.status["lastActuation"]["path"] == "level3"


async def test_one_replica_starts_and_the_others_stand_by_until_the_load_asks_for_more(rig):
    await standing_by(rig, replicas=3)
    wake(rig)
    tell(rig, in_flight=1, held=1)
    await rig.settle()
    assert states(rig).count(WorkerState.STANDBY) == 2, "an engine that starts is not another's reason to"
    await started(rig)
    assert (awake(rig), states(rig).count(WorkerState.STANDBY)) == (1, 2)
    assert rig.condition("Ready")[:2] == ("True", "Serving")
    tell(rig, in_flight=1000, awake_workers=1)
    await rig.settle()
    assert states(rig).count(WorkerState.STANDBY) == 0
    await started(rig)
    assert awake(rig) == 3


async def test_an_engine_that_fails_on_its_way_says_why(rig):
    await standing_by(rig)
    wake(rig)
    await rig.settle()
    rig.worker().fail("ModelNotFound", "no such directory")
    await rig.settle()
    assert rig.condition("Ready")[:2] == ("False", "ModelNotFound")
    assert rig.status["phase"] == "Failed"


async def test_an_order_to_level_3_ends_the_engine_from_level_1_too_and_its_end_wakes(rig):
    await idle(rig, "Level1")
    rig.apply(lifecycle={"desiredState": "Asleep", "sleepLevel": 3})
    await rig.settle()
    assert rig.worker().state is WorkerState.STANDBY
    assert rig.condition("Asleep")[2].startswith("1 of 1 workers are asleep at level 3")
    rig.apply(lifecycle={"desiredState": "Active"})
    await started(rig)
    assert rig.status["phase"] == "Active"


async def test_a_request_that_comes_in_while_it_goes_to_standby_keeps_its_engine(rig):
    await rig.serving(lifecycle={"level1AfterSeconds": None, "level3AfterSeconds": 600})
    tell(rig)
    rig.clock.step(await rig.reconcile())
    rig.worker().request_counter += 1
    rig.worker().running_requests = 1
    tell(rig, in_flight=1)
    await rig.settle()
    assert rig.worker().state is WorkerState.READY
    assert rig.worker().running_requests == 1


async def test_a_pod_in_standby_whose_spec_changes_is_replaced_not_swapped(rig):
    await rig.serving(lifecycle=LADDER, rollout={"strategy": "SleepSwap"})
    tell(rig)
    while rig.status.get("lifecycle", {}).get("rung") != "Level3":
        await until_due(rig)
    before = rig.worker()
    rig.apply(engine={"device": "cpu", "maxNumSeqs": 4})
    for _ in range(6):
        await rig.settle()
        rig.finish_loading()
        rig.clock.step(5)
    assert "swap_engine" not in before.commands
    assert rig.status["phase"] == "Asleep"
    assert len(rig.pods) == 1


@pytest.mark.parametrize("field", [{"level3AfterSeconds": 3600}, {"desiredState": "Asleep", "sleepLevel": 3}])
async def test_groups_of_several_pods_are_refused_by_name(rig, field):
    rig.apply(lifecycle=field, parallelism={"pipeline": 2})
    await rig.settle()
    status, reason, message = rig.condition("Accepted")
    assert (status, reason) == ("False", "InvalidSpec")
    assert f"spec.lifecycle.{list(field)[-1]}" in message
    assert "spec.parallelism.pipeline 1" in message
    assert rig.pods == []
