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
    assert (
        rig.condition("Asleep")[2]
        == "2 of 2 workers are asleep at level 1; freed 2.00 GiB in 0.50 s, 0.50 GiB stay in use"
    )
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
    assert rig.worker().commands[-2:] == ["abort", "sleep 1"]


async def test_a_wake_brings_the_same_count_back_and_is_told_with_its_time(rig):
    await rig.serving()
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    rig.apply(lifecycle={"desiredState": "Active"})
    await rig.settle()
    assert rig.status["phase"] == "Active"
    assert rig.worker().allocated == 2000
    assert rig.worker().commands[-2:] == ["prepare_wake_up", "wake_up"]
    assert rig.status["lastActuation"]["path"] == "level1"
    assert rig.status["lastActuation"]["seconds"] == 0.25
    assert "Woke: awake from level 1 in 0.25 s" in rig.events


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
    assert rig.worker().commands == ["initialize_cache", "drain", "prepare_sleep", "sleep 1"]


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


async def test_if_one_worker_refuses_to_sleep_all_stay_awake_and_it_is_named(rig):
    await rig.serving(replicas=2)
    rig.worker(1).refuse_next = [WorkerRefused("RESOURCE_EXHAUSTED: host memory is short")] * 9
    rig.apply(lifecycle={"desiredState": "Asleep"})
    for _ in range(4):
        rig.node.tick()
        await rig.reconcile()
    assert [rig.worker(i).state for i in (0, 1)] == [WorkerState.DRAINING, WorkerState.READY]
    rig.worker(1).refuse_next = []
    rig.worker(1).drain(rig.leader.epoch)
    rig.worker(1).refuse_next = [WorkerRefused("RESOURCE_EXHAUSTED: host memory is short")]
    await rig.reconcile()
    assert rig.worker(0).state is WorkerState.READY, "what it had prepared is taken back"
    assert rig.worker(0).commands[-2:] == ["prepare_sleep", "wake_up"]
    await rig.reconcile()
    words = f"pod {rig.pods[1]}: RESOURCE_EXHAUSTED: host memory is short"
    assert rig.condition("Asleep") == ("False", "SleepRefused", words)
    assert rig.condition("Degraded") == ("True", "SleepRefused", words)
    await rig.settle()
    assert rig.status["phase"] == "Asleep"


async def test_a_deeper_order_puts_sleepers_to_sleep_again(rig):
    await rig.serving()
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    rig.apply(lifecycle={"desiredState": "Asleep", "sleepLevel": 2})
    await rig.settle()
    assert rig.worker().sleep_level == 2
    assert rig.condition("Asleep")[2].startswith("1 of 1 workers are asleep at level 2")
    assert rig.status["kvCache"]["ranks"][0]["sleepLevel"] == 2
    rig.apply(lifecycle={"desiredState": "Auto"})
    await rig.settle()
    assert rig.status["lastActuation"]["path"] == "level2"
    assert rig.status["lastActuation"]["reason"] == "desiredState is Auto"


async def test_a_wake_that_lacks_memory_says_how_much_and_comes_about_later(rig):
    await rig.serving()
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    rig.worker().missing_bytes = 3 * 2**29
    rig.apply(lifecycle={"desiredState": "Active"})
    await rig.reconcile()
    await rig.reconcile()
    assert rig.condition("Asleep")[1:] == (
        "WakeRefused",
        f"pod {rig.pods[0]}: 1.50 GiB of memory are missing to wake up",
    )
    assert rig.status["phase"] == "Waking"
    rig.worker().missing_bytes = 0
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_the_order_zero_leaves_no_pod_and_stays_ready(rig):
    await rig.serving(replicas=2)
    rig.apply(lifecycle={"desiredState": "Zero"})
    await rig.settle()
    assert rig.pods == []
    assert rig.status["phase"] == "Zero"
    assert rig.condition("Ready")[:2] == ("True", "Zero")
    assert rig.condition("Available")[:2] == ("False", "Zero")
    rig.apply(lifecycle={"desiredState": "Auto"})
    await rig.until_profiled()
    await rig.settle()
    assert rig.status["phase"] == "Active"
    assert rig.status["readyReplicas"] == 2


async def test_a_worker_that_keeps_too_much_asleep_is_told(rig):
    await rig.serving()
    rig.worker().residual_bytes = 5 * 2**29
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    status, reason, message = rig.condition("SleepVerified")
    assert (status, reason) == ("False", "ResidualTooHigh")
    assert f"pod {rig.pods[0]} still holds 2.50 GiB asleep, 2 GiB are expected at most" in message
    assert rig.condition("Degraded")[:2] == ("True", "ResidualTooHigh")
    assert rig.status["phase"] == "Asleep"
