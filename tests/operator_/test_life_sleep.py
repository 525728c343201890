"""An order to sleep or to wake is carried out, refused, changed in the middle."""

from dormouse_operator.errors import WorkerRefused
from dormouse_operator.model import WorkerState


async def test_an_order_to_sleep_closes_the_gate_drains_and_sleeps_and_ready_stays_true(rig):
    await rig.serving(replicas=2)
    busy = rig.worker(0)
    busy.running_requests = 2
    rig.apply(lifecycle={"desiredState": "Asleep", "drainTimeoutSeconds": 60})
    for _ in range(5):
        rig.node.tick()
        await rig.reconcile()
    assert rig.status["phase"] == "Draining"
    assert rig.gate()["status"] == "False"
    assert busy.state is WorkerState.DRAINING
    busy.running_requests = 0
    await rig.settle()
    assert rig.status["phase"] == "Asleep"
    assert rig.status["sleepingReplicas"] == 2
    assert rig.condition("Asleep")[2] == "2 of 2 workers are asleep; freed 2.00 GiB in 0.50 s, 0.50 GiB stay in use"
    assert rig.condition("Ready")[:2] == ("True", "Asleep")
    assert rig.status["kvCache"]["ranks"][0]["residualBytes"] == 2**28
    assert any(event.startswith("Slept: 2 of 2") for event in rig.events)


async def test_requests_that_outlast_the_drain_are_ended(rig):
    await rig.serving(lifecycle={"desiredState": "Active", "drainTimeoutSeconds": 60})
    rig.worker().running_requests = 1
    rig.apply(lifecycle={"desiredState": "Asleep", "drainTimeoutSeconds": 60})
    for _ in range(5):
        rig.node.tick()
        await rig.reconcile()
    rig.clock.step(59.0)
    await rig.reconcile()
    assert rig.worker().state is WorkerState.DRAINING
    rig.clock.step(1.0)
    await rig.settle()
    assert rig.worker().state is WorkerState.ASLEEP
    assert rig.worker().commands[-1] == "abort+sleep"


async def test_a_wake_brings_the_same_count_back_and_is_told_with_its_time(rig):
    await rig.serving()
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    rig.apply(lifecycle={"desiredState": "Active"})
    await rig.settle()
    assert rig.status["phase"] == "Active"
    assert rig.worker().allocated == 2000
    assert rig.worker().commands[-1] == "wake_up"
    assert rig.status["lastActuation"]["path"] == "level2"
    assert rig.status["lastActuation"]["seconds"] == 0.25
    assert "Woke: awake from level 2 in 0.25 s" in rig.events


async def test_an_order_to_wake_in_the_middle_of_a_drain_is_obeyed_at_once(rig):
    await rig.serving()
    rig.worker().running_requests = 1
    rig.apply(lifecycle={"desiredState": "Asleep"})
    for _ in range(4):
        rig.node.tick()
        await rig.reconcile()
    assert rig.worker().state is WorkerState.DRAINING
    rig.apply(lifecycle={"desiredState": "Active"})
    await rig.settle()
    assert rig.worker().state is WorkerState.READY
    assert rig.status["phase"] == "Active"


async def test_a_deployment_that_is_created_asleep_starts_and_then_sleeps(rig):
    await rig.serving(lifecycle={"desiredState": "Asleep"})
    assert rig.status["phase"] == "Asleep"
    assert rig.worker().commands == ["initialize_cache", "drain", "sleep"]


async def test_a_refused_wake_is_told_and_tried_again(rig):
    await rig.serving()
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    rig.worker().refuse_next = [WorkerRefused("RESOURCE_EXHAUSTED: 300 MiB are missing")] * 2
    rig.apply(lifecycle={"desiredState": "Active"})
    await rig.reconcile()
    await rig.reconcile()
    assert rig.condition("Ready")[1] == "WakeRefused"
    assert "300 MiB" in rig.condition("Asleep")[2]
    await rig.settle()
    assert rig.status["phase"] == "Active"
