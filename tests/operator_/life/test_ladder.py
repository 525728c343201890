"""A deployment that nobody calls goes down the ladder, and one call brings it back. In virtual time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_operator.model import WorkerState
from tests.operator_.ladders import LADDER, idle, rungs, tell, until_due, wake


async def test_a_whole_night_down_the_ladder_and_a_cold_start_for_the_first_request(rig):
    await rig.serving(lifecycle=LADDER, replicas=2)
    begin = rig.clock()
    tell(rig)
    await until_due(rig)
    assert (rig.clock() - begin).total_seconds() == 600
    assert rig.status["phase"] == "Asleep"
    assert rig.condition("Ready") == (
        "True",
        "Asleep",
        "2 of 2 replicas sleep or are about to, idle for 600 s; a request wakes them",
    )
    assert rig.condition("Asleep")[2].startswith("idle for 600 s: 2 of 2 workers are asleep at level 1; freed")
    assert rig.condition("Available") == ("False", "Asleep", "idle for 600 s: asleep; a request wakes it")
    assert rig.status["lifecycle"] == {
        "rung": "Level1",
        "since": "2026-01-01T00:10:00Z",
        "reason": "idle",
        "idleSince": "2026-01-01T00:00:00Z",
    }
    await until_due(rig)
    assert [rig.worker(index).sleep_level for index in (0, 1)] == [2, 2]
    assert (rig.clock() - begin).total_seconds() == 1800
    await until_due(rig)
    assert (rig.clock() - begin).total_seconds() == 7200
    assert (rig.pods, rig.status["phase"]) == ([], "Zero")
    assert rig.condition("Ready") == ("True", "Zero", "idle for 7200 s: no pod; a request brings them back")
    assert await rig.reconcile() is None, "without a call this is for ever"
    rig.clock.step(30_000)
    wake(rig)
    tell(rig, in_flight=1, held=1)
    await rig.until_profiled()
    rig.clock.step(20)
    await rig.settle()
    assert (rig.status["phase"], rig.status["readyReplicas"]) == ("Active", 1), "more come with more load"
    actuation = rig.status["lastActuation"]
    assert (actuation["path"], actuation["reason"], actuation["seconds"]) == ("cold", "request", 20.0)
    assert rungs(rig)[2:] == [
        "Slept: idle for 7200 s: no pod; a request brings them back",
        "Woke: serves after no pod in 20.00 s: request",
    ]
    assert rig.errors == []


@pytest.mark.parametrize(("rung", "path"), [("Level1", "level1"), ("Level2", "level2")])
async def test_a_wake_intent_wakes_what_sleeps_and_it_stays_awake_as_long_as_at_first(rig, rung, path):
    await idle(rig, rung)
    rig.clock.step(100)
    wake(rig)
    await rig.settle()
    assert rig.status["phase"] == "Active"
    assert (rig.status["lastActuation"]["path"], rig.status["lastActuation"]["reason"]) == (path, "request")
    assert rungs(rig)[-1] == f"Woke: awake from level {path[-1]} in 0.25 s"
    assert await until_due(rig) == 600
    assert rig.status["phase"] == "Asleep"
    rig.clock.step(1)
    assert await rig.reconcile(), "the intent of before wakes nobody again"
    assert rig.status["phase"] == "Asleep"


async def test_nothing_is_written_and_nobody_is_asked_between_two_rungs(rig):
    await rig.serving(lifecycle=LADDER)
    tell(rig)
    await rig.settle()
    rig.kube.calls.clear()
    rig.workers.asked.clear()
    for _ in range(50):
        rig.clock.step(10)
        tell(rig, in_flight=1)
        await rig.reconcile()
        tell(rig, last_request_s=rig.clock().timestamp())
        await rig.reconcile()
    assert rig.kube.mutations() == []
    assert not rig.workers.asked
    await until_due(rig)
    rig.kube.calls.clear()
    for _ in range(5):
        rig.clock.step(100)
        assert await rig.reconcile()
    assert rig.kube.mutations() == []


@pytest.mark.parametrize("rung", ["Level1", "Level2", "Zero"])
async def test_an_operator_that_starts_anew_goes_on_from_the_rung(rig, rung):
    await idle(rig, rung)
    before = rig.status
    rig.restart_operator()
    rig.kube.calls.clear()
    await rig.settle()
    assert (rig.kube.mutations(), rig.status) == ([], before), "nobody is heard of: nothing changes"
    tell(rig)
    await rig.settle()
    assert rig.status == before
    if rung != "Zero":
        begin = rig.clock()
        await until_due(rig)
        assert rig.status["lifecycle"]["rung"] == {"Level1": "Level2", "Level2": "Zero"}[rung]
        assert (rig.clock() - begin).total_seconds() == {"Level1": 1200, "Level2": 5400}[rung], "the old silence counts"
    wake(rig)
    await rig.until_profiled()
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_an_operator_and_gateways_that_start_anew_begin_to_count_anew(rig):
    await rig.serving(lifecycle=LADDER)
    tell(rig)
    rig.clock.step(590)
    rig.restart_operator()
    tell(rig)
    await rig.settle()
    assert await until_due(rig) == 600


async def test_prewarm_wakes_ahead_of_time_and_it_sleeps_again_if_nobody_comes(rig):
    prewarm = [{"cron": "45 7 * * *", "timeZone": "Europe/Berlin"}]
    await rig.serving(lifecycle={**LADDER, "level2AfterSeconds": None, "zeroAfterSeconds": None, "prewarm": prewarm})
    tell(rig)
    await until_due(rig)
    assert rig.status["phase"] == "Asleep"
    await until_due(rig)
    assert rig.clock().isoformat() == "2026-01-01T06:45:00+00:00"
    assert (rig.status["phase"], rig.status["lastActuation"]["reason"]) == ("Active", "prewarm")
    assert await until_due(rig) == 600
    assert rig.status["phase"] == "Asleep"


async def test_it_never_sleeps_before_it_was_ready_nor_within_its_least_time(rig):
    lifecycle = {"level1AfterSeconds": 5, "minActiveSeconds": 120}
    rig.apply(lifecycle=lifecycle)
    tell(rig)
    await rig.settle()
    rig.clock.step(1000)
    await rig.settle()
    assert rig.status["phase"] == "Starting" or rig.status["phase"] == "Profiling"
    await rig.until_profiled()
    await rig.settle()
    assert rig.status["phase"] == "Active"
    ready = rig.clock()
    while rig.status["phase"] == "Active":
        await until_due(rig)
    assert timedelta(seconds=120) <= rig.clock() - ready <= timedelta(seconds=121)


async def test_null_is_never(rig):
    await rig.serving(lifecycle={"level1AfterSeconds": None})
    tell(rig)
    rig.clock.step(10**6)
    assert await rig.reconcile() is None
    assert rig.status["phase"] == "Active"
    assert "lifecycle" not in rig.status


@pytest.mark.parametrize("order", ["Active", "Asleep", "Zero"])
async def test_orders_stand_over_the_ladder(rig, order):
    await idle(rig, "Level1")
    rig.apply(lifecycle={**LADDER, "desiredState": order})
    await rig.settle()
    assert rig.status["phase"] == order
    assert "lifecycle" not in rig.status
    wake(rig)
    tell(rig, held=1, in_flight=1)
    await rig.settle()
    assert rig.status["phase"] == order
    rig.apply(lifecycle={**LADDER, "desiredState": "Auto"})
    await rig.until_profiled()
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_the_scaler_leaves_who_sleeps_alone_and_scales_who_is_awake(rig):
    scaling = {"minReplicas": 1, "maxReplicas": 4, "targetOutstandingPerReplica": 10}
    await idle(rig, "Zero", scaling=scaling, replicas=2)
    assert repr(rig.scaler) == "Scaler()"
    await rig.scaler.step()
    assert rig.kube.peek(INFERENCE_DEPLOYMENTS, *rig.key)["spec"]["replicas"] == 2
    wake(rig)
    tell(rig, in_flight=40, held=40)
    await rig.until_profiled()
    await rig.scaler.step()
    await rig.until_profiled()
    await rig.settle()
    assert rig.status["readyReplicas"] == 4


async def test_a_worker_that_crashes_in_its_sleep_comes_back_asleep(rig):
    await idle(rig, "Level1")
    rig.node.crash(rig.pods[0], exit_code=1)
    await rig.until_profiled()
    await rig.settle()
    assert rig.status["phase"] == "Asleep"
    assert rig.worker().state is WorkerState.ASLEEP
    assert rig.status["lifecycle"]["rung"] == "Level1"


async def test_a_wake_from_no_pod_in_the_middle_of_the_removal_keeps_the_pods(rig):
    await rig.serving(lifecycle={"level1AfterSeconds": None, "zeroAfterSeconds": 600}, replicas=2)
    pods = rig.pods
    tell(rig)
    rig.clock.step(600)
    await rig.reconcile()
    rig.node.tick()
    assert rig.gate()["reason"] == "Leaving"
    tell(rig, in_flight=1, held=1)
    await rig.settle()
    assert (rig.pods, rig.status["phase"]) == (pods, "Active")
    assert rig.status["readyReplicas"] == 2


async def test_a_wake_that_is_refused_is_told_and_comes_about_later(rig):
    await idle(rig, "Level1")
    rig.worker().missing_bytes = 2**30
    wake(rig)
    await rig.reconcile()
    await rig.reconcile()
    assert rig.condition("Asleep")[1] == "WakeRefused"
    assert rig.status["lifecycle"]["rung"] == "Active"
    rig.worker().missing_bytes = 0
    await rig.settle()
    assert (rig.status["phase"], rig.status["lastActuation"]["reason"]) == ("Active", "request")


async def test_a_prewarm_that_no_schema_can_check_is_refused_with_field_and_value_and_changes_nothing(rig):
    await idle(rig, "Level1")
    rig.apply(lifecycle={**LADDER, "prewarm": [{"cron": "0 25 * * *"}]})
    await rig.settle()
    status, reason, message = rig.condition("Accepted")
    assert (status, reason) == ("False", "InvalidSpec")
    assert message.startswith("spec.lifecycle.prewarm[0].cron is '0 25 * * *': Bad hour")
    assert rig.worker().state is WorkerState.ASLEEP
    rig.apply(lifecycle=LADDER)
    await rig.settle()
    assert (rig.status["phase"], rig.status["lifecycle"]["rung"]) == ("Asleep", "Level1")


async def test_a_new_spec_rolls_out_asleep_and_wakes_as_the_new_one(rig):
    await idle(rig, "Level1")
    old = rig.pods
    rig.apply(engine={"device": "cpu", "maxNumSeqs": 3})
    await rig.until_profiled()
    await rig.settle()
    assert rig.pods != old
    assert rig.status["phase"] == "Asleep"
    wake(rig)
    await rig.settle()
    assert (rig.status["phase"], rig.status["readyReplicas"]) == ("Active", 1)
