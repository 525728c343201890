"""How a deployment comes to serve: load, profile, agree on the minimum, allocate; and who comes late."""

from dormouse_kube.api import INFERENCE_DEPLOYMENTS, SERVICES
from dormouse_kube.errors import Unavailable
from dormouse_operator.model import WorkerState


async def test_one_replica_starts_profiles_agrees_allocates_and_serves(rig):
    rig.apply()
    await rig.settle()
    assert rig.status["phase"] == "Profiling"
    assert rig.condition("ModelLoaded")[:2] == ("False", "Loading")
    rig.worker().finish_loading()
    await rig.settle()
    assert rig.status["phase"] == "Active"
    assert rig.condition("Ready") == ("True", "Serving", "1 of 1 replicas serve")
    assert rig.status["kvCache"]["numGpuBlocks"] == 2000
    assert rig.worker().commands == ["initialize_cache"]
    assert rig.gate()["status"] == "True"
    assert rig.status["readyReplicas"] == 1
    assert rig.status["image"] == "worker:1"
    assert rig.status["url"] == "gateway:50051"
    assert rig.kube.peek(SERVICES, "team", "tiny") is not None


async def test_two_workers_agree_on_the_minimum_and_the_limiting_one_is_named(rig):
    rig.node.blocks = {"0": 2111, "1": 2055}
    await rig.serving(replicas=2)
    cache = rig.status["kvCache"]
    assert cache["numGpuBlocks"] == 2055
    assert cache["limitingRank"] == f"{rig.pods[1]}/0"
    assert [rank["numGpuBlocks"] for rank in cache["ranks"]] == [2111, 2055]
    assert [rig.worker(i).allocated for i in (0, 1)] == [2055, 2055]
    assert f"BlocksAgreed: blocks agreed: 2055, the minimum of [2111, 2055], limited by pod {rig.pods[1]}" in rig.events


async def test_the_agreement_stands_in_the_status_before_a_worker_allocates(rig):
    rig.apply()
    await rig.until_profiled()
    rig.kube.fail("patch_status", INFERENCE_DEPLOYMENTS, Unavailable("down"))
    await rig.reconcile()
    assert rig.worker().commands == []
    await rig.settle()
    assert rig.worker().allocated == 2000


async def test_a_worker_that_does_not_report_is_waited_for_but_only_so_long(rig):
    rig.apply(replicas=2)
    await rig.settle()
    rig.worker(0).finish_loading()
    await rig.settle()
    assert rig.condition("BlocksAgreed")[:2] == ("False", "WaitingForReports")
    assert rig.status["phase"] == "Profiling"
    rig.clock.step(9.0)
    await rig.settle()
    assert rig.worker(0).allocated == 0
    rig.clock.step(1.0)
    await rig.settle()
    assert rig.worker(0).allocated == 2000
    assert rig.status["phase"] == "Degraded"


async def test_the_wait_survives_a_restart_of_the_operator(rig):
    rig.apply(replicas=2)
    await rig.settle()
    rig.worker(0).finish_loading()
    await rig.settle()
    rig.clock.step(10.0)
    rig.restart_operator()
    await rig.settle()
    assert rig.worker(0).allocated == 2000


async def test_a_latecomer_that_reports_less_shrinks_the_others_one_at_a_time(rig):
    rig.node.blocks = {"2": 1500}
    await rig.serving(replicas=2)
    rig.apply(replicas=3)
    await rig.settle()
    busy = rig.worker(0)
    busy.running_requests = 1
    rig.worker(2).finish_loading()
    for _ in range(6):
        rig.node.tick()
        await rig.reconcile()
    assert rig.gate(0)["status"] == "False"
    assert rig.worker(1).allocated == 2000, "its turn comes when the first is done"
    assert rig.gate(1)["status"] == "True"
    busy.running_requests = 0
    await rig.settle()
    assert [rig.worker(i).allocated for i in (0, 1, 2)] == [1500, 1500, 1500]
    assert rig.status["phase"] == "Active"


async def test_a_latecomer_that_reports_more_takes_what_is_agreed(rig):
    rig.node.blocks = {"1": 3000}
    await rig.serving(replicas=1)
    rig.apply(replicas=2)
    await rig.until_profiled()
    await rig.settle()
    assert [rig.worker(i).allocated for i in (0, 1)] == [2000, 2000]
    assert rig.worker(0).commands == ["initialize_cache"], "who serves is left alone"


async def test_when_the_limiting_worker_leaves_the_others_grow_if_it_is_worth_it(rig):
    rig.node.blocks = {"2": 1500}
    await rig.serving(replicas=3)
    rig.apply(replicas=2)
    await rig.settle()
    assert [rig.worker(i).allocated for i in (0, 1)] == [2000, 2000]
    assert rig.worker().commands == ["initialize_cache", "drain", "initialize_cache"]
    assert any(event.startswith("BlocksAgreed: blocks agreed: 2000") for event in rig.events)


async def test_workers_that_grow_leave_the_service_one_at_a_time(rig):
    rig.node.blocks = {"2": 1500}
    await rig.serving(replicas=3)
    rig.apply(replicas=2)
    for _ in range(20):
        rig.node.tick()
        await rig.reconcile()
        assert any(rig.gate(i)["status"] == "True" for i in (0, 1))
    assert rig.status["phase"] == "Active"


async def test_a_gain_of_less_than_a_tenth_interrupts_nobody(rig):
    rig.node.blocks = {"1": 1900}
    await rig.serving(replicas=2)
    rig.apply(replicas=1)
    await rig.settle()
    assert rig.worker().allocated == 1900
    assert rig.condition("BlocksAgreed")[2] == "blocks agreed: 1900, as allocated already; reported are [2000]"
    assert rig.worker().commands == ["initialize_cache"]


async def test_the_epoch_rises_above_whatever_a_worker_has_seen(rig):
    rig.apply()
    await rig.settle()
    rig.worker().epoch = 41
    rig.worker().finish_loading()
    await rig.settle()
    assert rig.leader.epoch == 42
    assert rig.worker().epoch == 42


async def test_the_phase_tells_each_step_of_a_start(rig):
    seen = []
    rig.apply()
    for _ in range(12):
        await rig.reconcile()
        seen += [rig.status["phase"]] if rig.status["phase"] not in seen else []
        rig.node.tick()
        if rig.workers.workers and rig.worker().state is WorkerState.LOADING and "Profiling" in seen:
            rig.worker().finish_loading()
    assert seen == ["Pending", "Profiling", "Allocating", "Active"]


async def test_the_wait_for_a_worker_whose_container_does_not_run_ends_by_the_clock(rig):
    rig.apply(replicas=2)
    await rig.settle()
    rig.worker(0).finish_loading()
    rig.node.crash(rig.pods[1], exit_code=1, restarts=False)
    await rig.reconcile()
    rig.clock.step(4.0)
    assert await rig.reconcile() == 6.0
    rig.clock.step(6.0)
    await rig.settle()
    assert rig.worker(0).allocated == 2000


async def test_a_worker_that_is_to_hold_less_is_drained_first_and_its_late_requests_are_ended(rig):
    await rig.serving(lifecycle={"drainTimeoutSeconds": 60})
    rig.worker().running_requests = 1
    rig.node.blocks = {"1": 1500}
    rig.apply(replicas=2)
    for _ in range(3):
        rig.node.tick()
        await rig.reconcile()
    rig.worker(1).finish_loading()
    for _ in range(6):
        rig.node.tick()
        await rig.reconcile()
    assert (rig.worker(0).state, rig.worker(0).allocated) == (WorkerState.DRAINING, 2000)
    assert rig.gate(0)["reason"] == "Reallocating"
    rig.clock.step(60.0)
    await rig.settle()
    assert [rig.worker(i).allocated for i in (0, 1)] == [1500, 1500]
    assert "abort" in rig.worker(0).commands
    assert rig.status["phase"] == "Active"


async def test_impossible_numbers_hold_nobody_up_and_are_never_allocated(rig):
    rig.node.blocks = {"1": -7}
    await rig.serving(replicas=2)
    assert rig.worker(0).allocated == 2000
    assert rig.worker(1).commands == []
    assert rig.condition("MemoryProfiled")[1] == "ReportOutOfBounds"
    assert rig.status["phase"] == "Degraded"


async def test_a_smaller_newcomer_serves_before_the_only_other_one_is_taken_out(rig):
    rig.node.blocks = {"1": 1500}
    await rig.serving()
    rig.apply(replicas=2)
    serving = []
    for _ in range(20):
        rig.node.tick()
        for index in range(len(rig.pods)):
            if rig.worker(index).state is WorkerState.LOADING:
                rig.worker(index).finish_loading()
        await rig.reconcile()
        serving.append(rig.status["readyReplicas"])
    assert min(serving) >= 1
    assert [rig.worker(i).allocated for i in (0, 1)] == [1500, 1500]
    assert rig.status["phase"] == "Active"
