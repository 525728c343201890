"""A deployment's life over fakes: start, agreement, failures, scale, sleep, wake, deletion. The whole pass runs."""

import pytest

from dormouse_api.names import READINESS_GATE
from dormouse_kube.api import EVENTS, INFERENCE_DEPLOYMENTS, PODS, SERVICES
from dormouse_kube.errors import Conflict, Forbidden, Unavailable
from dormouse_operator.errors import NotLeading, WorkerRefused, WorkerUnreachable
from dormouse_operator.model import WorkerState


def gate_of(rig, index=0):
    pod = rig.kube.everything(PODS)[index]
    return next((item for item in pod["status"]["conditions"] if item["type"] == READINESS_GATE), None)


async def test_one_replica_starts_profiles_agrees_allocates_and_serves(rig):
    rig.apply()
    await rig.settle()
    assert rig.status["phase"] == "Loading"
    assert rig.condition("ModelLoaded")[:2] == ("False", "Loading")
    rig.worker().finish_loading()
    await rig.settle()
    assert rig.status["phase"] == "Active"
    assert rig.condition("Ready") == ("True", "Serving", "1 of 1 replicas serve")
    assert rig.status["kvCache"]["numGpuBlocks"] == 2000
    assert rig.worker().commands == ["initialize_cache"]
    assert gate_of(rig)["status"] == "True"
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
    assert rig.status["phase"] == "Loading"
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
    assert gate_of(rig, 0)["status"] == "False"
    assert rig.worker(1).allocated == 2000, "its turn comes when the first is done"
    assert gate_of(rig, 1)["status"] == "True"
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


async def test_a_deleted_pod_comes_back_and_is_agreed_on_again(rig):
    await rig.serving()
    uid = rig.kube.everything(PODS)[0]["metadata"]["uid"]
    await rig.kube.delete(PODS, "team", rig.pods[0])
    await rig.settle()
    assert rig.status["phase"] == "Loading"
    assert rig.condition("Ready")[0] == "False"
    rig.worker().finish_loading()
    await rig.settle()
    assert rig.kube.everything(PODS)[0]["metadata"]["uid"] != uid
    assert rig.status["phase"] == "Active"
    assert rig.worker().allocated == 2000


async def test_a_crashed_worker_is_told_with_its_exit_code_and_recovers(rig):
    await rig.serving()
    rig.node.crash(rig.pods[0], exit_code=137, message="first\nKilled", restarts=False)
    await rig.reconcile()
    assert rig.condition("ModelLoaded") == (
        "False",
        "WorkerCrashed",
        f"pod {rig.pods[0]}: exit code 137, restarted 1 times: Killed",
    )
    assert rig.status["phase"] == "Failed"
    rig.node.crash(rig.pods[0], exit_code=137)
    await rig.settle()
    rig.worker().finish_loading()
    await rig.settle()
    assert rig.status["phase"] == "Active"
    assert gate_of(rig)["status"] == "True"


async def test_a_worker_that_restarts_in_its_pod_is_out_of_the_service_until_it_holds_the_cache(rig):
    await rig.serving()
    rig.node.crash(rig.pods[0], exit_code=1)
    await rig.settle()
    assert gate_of(rig)["status"] == "False"
    rig.worker().finish_loading()
    await rig.settle()
    assert gate_of(rig)["status"] == "True"


async def test_a_failed_worker_becomes_a_condition_with_its_own_words_and_is_left_alone(rig):
    rig.apply()
    await rig.settle()
    rig.worker().fail("ModelNotFound", "/models/models/tiny does not exist")
    await rig.settle()
    assert rig.condition("ModelLoaded") == (
        "False",
        "ModelNotFound",
        f"pod {rig.pods[0]}: /models/models/tiny does not exist",
    )
    assert rig.status["phase"] == "Failed"
    assert rig.worker().commands == []
    assert [event for event in rig.events if event.startswith("ModelNotFound")]


async def test_too_little_memory_is_a_condition_of_the_profile(rig):
    rig.apply()
    await rig.settle()
    rig.worker().fail("InsufficientMemory", "needs 3 GiB, has 2 GiB; raise resources.limits.memory")
    await rig.settle()
    assert rig.condition("MemoryProfiled")[:2] == ("False", "InsufficientMemory")
    assert "raise" in rig.condition("Ready")[2]


async def test_a_refused_allocation_is_a_condition_and_is_tried_again(rig):
    rig.apply()
    await rig.settle()
    rig.worker().refuse_next = [WorkerRefused("INVALID_ARGUMENT: too few blocks")]
    rig.worker().finish_loading()
    await rig.reconcile()
    await rig.reconciler._publish(
        (await rig.reconciler._observer.observe(rig.key, rig.reconciler._refusals[rig.key]))[0]
    )
    assert rig.condition("CacheAllocated")[1:] == (
        "AllocationRefused",
        f"pod {rig.pods[0]}: INVALID_ARGUMENT: too few blocks",
    )
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_a_pod_without_a_node_is_told_in_the_schedulers_words(rig):
    rig.node.is_full = True
    rig.apply()
    await rig.settle()
    status, reason, message = rig.condition("Scheduled")
    assert (status, reason) == ("False", "Unschedulable")
    assert "Insufficient memory" in message
    rig.node.is_full = False
    await rig.until_profiled()
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_a_pod_that_admission_refuses_is_told_in_the_servers_words(rig):
    rig.kube.fail("apply", PODS, Forbidden("violates PodSecurity"), times=2)
    rig.apply()
    await rig.reconcile()
    await rig.reconcile()
    assert rig.condition("Scheduled")[1] == "PodRejected"
    assert "violates PodSecurity" in rig.condition("Scheduled")[2]
    await rig.until_profiled()
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_scaling_down_removes_the_highest_and_leaves_the_rest_alone(rig):
    await rig.serving(replicas=3)
    first = rig.worker(0)
    rig.apply(replicas=1)
    await rig.settle()
    assert len(rig.pods) == 1
    assert rig.worker(0) is first
    assert first.commands == ["initialize_cache"]
    assert rig.status["replicas"] == 1


async def test_zero_replicas_means_off(rig):
    await rig.serving()
    rig.apply(replicas=0)
    await rig.settle()
    assert rig.pods == []
    assert rig.status["phase"] == "Off"
    assert rig.condition("Ready")[:2] == ("False", "NoReplicas")


async def test_another_spec_replaces_the_pods(rig):
    await rig.serving()
    [before] = rig.pods
    rig.apply(engine={"device": "cpu", "maxNumSeqs": 4})
    await rig.until_profiled()
    await rig.settle()
    [after] = rig.pods
    assert before != after
    assert rig.status["phase"] == "Active"
    assert rig.status["observedGeneration"] == 2


async def test_a_new_operator_with_another_image_restarts_no_worker_even_when_scaled(rig):
    await rig.serving()
    before = rig.pods
    rig.default_image = "worker:2"
    rig.restart_operator()
    await rig.settle()
    rig.apply(replicas=2)
    await rig.settle()
    assert rig.pods[:1] == before
    assert rig.status["image"] == "worker:1"
    rig.apply(engine={"device": "cpu", "maxNumSeqs": 4})
    await rig.settle()
    assert rig.status["image"] == "worker:2"


async def test_an_order_to_sleep_closes_the_gate_drains_and_sleeps_and_ready_stays_true(rig):
    await rig.serving(replicas=2)
    busy = rig.worker(0)
    busy.running_requests = 2
    rig.apply(lifecycle={"desiredState": "Asleep", "drainTimeoutSeconds": 60})
    for _ in range(5):
        rig.node.tick()
        await rig.reconcile()
    assert rig.status["phase"] == "Draining"
    assert gate_of(rig)["status"] == "False"
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


async def test_nothing_is_written_and_nobody_is_asked_at_rest(rig):
    await rig.serving(replicas=2)
    rig.kube.calls.clear()
    rig.workers.asked.clear()
    for _ in range(3):
        assert await rig.reconcile() is None
    assert rig.kube.mutations() == []
    assert not rig.workers.asked


async def test_nothing_is_written_at_rest_asleep(rig):
    await rig.serving()
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    rig.kube.calls.clear()
    assert await rig.reconcile() is None
    assert rig.kube.mutations() == []


async def test_a_restarted_operator_changes_nothing(rig):
    await rig.serving(replicas=2)
    before = rig.status
    rig.restart_operator()
    rig.kube.calls.clear()
    await rig.settle()
    assert rig.kube.mutations() == []
    assert rig.status == before


async def test_the_epoch_rises_above_whatever_a_worker_has_seen(rig):
    rig.apply()
    await rig.settle()
    rig.worker().epoch = 41
    rig.worker().finish_loading()
    await rig.settle()
    assert rig.leader.epoch == 42
    assert rig.worker().epoch == 42


async def test_cuda_is_not_accepted_and_nothing_is_started(rig):
    rig.apply(engine={"device": "cuda"})
    await rig.settle()
    assert rig.condition("Accepted")[:2] == ("False", "DeviceNotSupported")
    assert "set spec.engine.device to cpu" in rig.condition("Accepted")[2]
    assert rig.status["phase"] == "Rejected"
    assert rig.pods == []


async def test_a_service_of_somebody_else_is_not_taken_over(rig):
    theirs = {"metadata": {"namespace": "team", "name": "tiny"}, "spec": {"ports": [{"port": 80}]}}
    rig.kube.put(SERVICES, theirs)
    rig.apply()
    await rig.settle()
    assert rig.condition("Accepted")[:2] == ("False", "ServiceNameTaken")
    assert rig.kube.peek(SERVICES, "team", "tiny")["spec"] == theirs["spec"]


async def test_a_changed_service_is_put_right(rig):
    await rig.serving()
    rig.kube.edit(SERVICES, "team", "tiny", lambda obj: obj["spec"].update(selector={"a": "b"}))
    await rig.settle()
    assert rig.kube.peek(SERVICES, "team", "tiny")["spec"]["selector"] != {"a": "b"}


async def test_an_evicted_pod_is_replaced(rig):
    await rig.serving()
    uid = rig.kube.everything(PODS)[0]["metadata"]["uid"]
    rig.kube.edit(
        PODS, "team", rig.pods[0], lambda pod: pod["status"].update(phase="Failed", reason="Evicted", message="full")
    )
    await rig.until_profiled()
    await rig.settle()
    assert rig.kube.everything(PODS)[0]["metadata"]["uid"] != uid
    assert rig.status["phase"] == "Active"


async def test_conflicts_and_outages_of_the_api_server_only_delay(rig):
    rig.kube.fail("apply", PODS, Conflict("changed"), times=2)
    rig.kube.fail("list", PODS, Unavailable("down"), times=3)
    rig.kube.fail("patch_status", INFERENCE_DEPLOYMENTS, Unavailable("down"), times=2)
    rig.apply()
    for _ in range(10):
        await rig.reconcile()
    assert len(rig.errors) == 5
    await rig.until_profiled()
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_deletion_leaves_nothing_and_needs_no_operator(rig):
    await rig.serving()
    obj = rig.kube.peek(INFERENCE_DEPLOYMENTS, *rig.key)
    assert "finalizers" not in obj["metadata"]
    assert "annotations" not in obj["metadata"]
    await rig.kube.delete(INFERENCE_DEPLOYMENTS, *rig.key)
    rig.kube.collect_garbage()
    assert rig.kube.everything(PODS) == []
    assert rig.kube.everything(SERVICES) == []
    assert await rig.reconcile() is None
    assert rig.reconciler.seen == {}


async def test_a_namesake_of_a_deleted_object_replaces_the_pods_that_are_left(rig):
    await rig.serving()
    old = rig.kube.everything(PODS)[0]["metadata"]["uid"]
    await rig.kube.delete(INFERENCE_DEPLOYMENTS, *rig.key)
    await rig.kube.delete(SERVICES, *rig.key)
    rig.apply()
    await rig.until_profiled()
    await rig.settle()
    assert rig.kube.everything(PODS)[0]["metadata"]["uid"] != old
    assert rig.status["phase"] == "Active"


async def test_a_spec_that_no_schema_of_ours_let_pass_is_rejected_in_the_status(rig):
    rig.apply(model={"uri": "s3://bucket/model"})
    await rig.settle()
    assert rig.status["phase"] == "Rejected"
    assert "s3://bucket/model" in rig.condition("Accepted")[2]
    assert rig.pods == []


async def test_an_event_that_can_not_be_written_stops_nothing(rig):
    rig.kube.fail("create", EVENTS, Forbidden("no"), times=99)
    await rig.serving()
    assert rig.status["phase"] == "Active"
    assert rig.events == []


async def test_a_deployment_that_is_being_deleted_is_left_alone(rig):
    await rig.serving()
    rig.kube.edit(INFERENCE_DEPLOYMENTS, *rig.key, lambda obj: obj["metadata"].update(finalizers=["someone/else"]))
    await rig.kube.delete(INFERENCE_DEPLOYMENTS, *rig.key)
    rig.apply(replicas=3)
    rig.kube.calls.clear()
    assert await rig.reconcile() is None
    assert rig.kube.mutations() == []


async def test_a_worker_that_can_not_be_reached_in_the_middle_is_tried_again(rig):
    rig.apply()
    await rig.settle()
    rig.worker().finish_loading()
    rig.worker().refuse_next = [WorkerUnreachable("it does not answer in time")]
    await rig.reconcile()
    assert len(rig.errors) == 1
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_when_the_limiting_worker_leaves_the_others_keep_what_they_hold(rig):
    rig.node.blocks = {"1": 1500}
    await rig.serving(replicas=2)
    rig.apply(replicas=1)
    await rig.settle()
    assert rig.worker().allocated == 1500
    assert rig.condition("BlocksAgreed")[2] == "blocks agreed: 1500, as allocated already; reported are [2000]"
    assert rig.worker().commands == ["initialize_cache"], "growing would interrupt who serves"


async def test_the_phase_tells_each_step_of_a_start(rig):
    seen = []
    rig.apply()
    for _ in range(12):
        await rig.reconcile()
        seen += [rig.status["phase"]] if rig.status["phase"] not in seen else []
        rig.node.tick()
        if rig.workers.workers and rig.worker().state is WorkerState.LOADING and "Loading" in seen:
            rig.worker().finish_loading()
    assert seen == ["Pending", "Loading", "Allocating", "Active"]


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


async def test_a_pod_whose_predecessor_is_still_ending_has_to_wait_for_the_name(rig):
    await rig.serving()
    await rig.kube.delete(PODS, "team", rig.pods[0])
    rig.kube.calls.clear()
    await rig.reconcile()
    assert [call for call in rig.kube.mutations() if call.plural == "pods"] == []
    assert rig.condition("Scheduled") == (
        "False",
        "PodsMissing",
        f"0 of 1 pods exist; pod {rig.pods[0]} is still ending",
    )


async def test_who_does_not_lead_writes_no_status_and_does_nothing(rig):
    await rig.serving()
    rig.leader.leads = False
    rig.kube.calls.clear()
    rig.apply(replicas=2)
    with pytest.raises(NotLeading):
        await rig.reconcile()
    assert rig.kube.mutations() == []


async def test_who_does_not_lead_does_nothing_even_where_the_status_stays_the_same(rig):
    await rig.serving()
    rig.leader.leads = False
    rig.kube.edit(SERVICES, "team", "tiny", lambda obj: obj["spec"].update(selector={"a": "b"}))
    with pytest.raises(NotLeading):
        await rig.reconcile()
    assert rig.kube.peek(SERVICES, "team", "tiny")["spec"]["selector"] == {"a": "b"}
