"""What goes wrong is told in the words of who knows, and is tried again where that can help."""

from dormouse_kube.api import EVENTS, INFERENCE_DEPLOYMENTS, PODS, SERVICES
from dormouse_kube.errors import Conflict, Forbidden, Invalid, Unavailable
from dormouse_operator.errors import WorkerRefused, WorkerUnreachable


async def test_a_crashed_worker_is_told_with_its_exit_code_and_recovers(rig):
    await rig.serving()
    rig.node.crash(rig.pods[0], exit_code=137, message="first\nKilled", restarts=False)
    await rig.reconcile()
    assert rig.condition("ModelLoaded") == (
        "False",
        "WorkerCrashed",
        f"pod {rig.pods[0]}: exit code 137, restarted 1 times; the last line of its log: Killed",
    )
    assert rig.status["phase"] == "Failed"
    rig.node.crash(rig.pods[0], exit_code=137)
    await rig.settle()
    rig.worker().finish_loading()
    await rig.settle()
    assert rig.status["phase"] == "Active"
    assert rig.gate()["status"] == "True"


async def test_a_worker_that_restarts_in_its_pod_is_out_of_the_service_until_it_holds_the_cache(rig):
    await rig.serving()
    rig.node.crash(rig.pods[0], exit_code=1)
    await rig.settle()
    assert rig.gate()["status"] == "False"
    rig.worker().finish_loading()
    await rig.settle()
    assert rig.gate()["status"] == "True"


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


async def test_a_gpu_that_is_ill_becomes_one_event_with_its_xid_and_the_pod_is_left_alone(rig):
    """A new container would get the same device. The report is gone with the engine."""
    await rig.serving()
    before = list(rig.worker().commands)
    rig.worker().fail("GPUUnhealthy", "Xid 79 on GPU-1: the GPU has fallen off the bus")
    await rig.settle()
    await rig.settle()
    told = [event for event in rig.events if event.startswith("GPUUnhealthy")]
    assert len(told) == 1
    assert "Xid 79 on GPU-1" in told[0]
    assert rig.condition("ModelLoaded")[:2] == ("False", "GPUUnhealthy")
    assert rig.gate()["status"] == "False"
    assert rig.worker().commands == before


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
    rig.worker().refuse_next = [WorkerRefused("INVALID_ARGUMENT: too few blocks")] * 2
    rig.worker().finish_loading()
    await rig.reconcile()
    await rig.reconcile()
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
    rig.kube.fail("create", PODS, Forbidden("violates PodSecurity"), times=2)
    rig.apply()
    await rig.reconcile()
    await rig.reconcile()
    assert rig.condition("Scheduled")[1] == "PodRejected"
    assert "violates PodSecurity" in rig.condition("Scheduled")[2]
    await rig.until_profiled()
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_what_was_refused_is_told_no_longer_once_nobody_asks_for_it(rig):
    """The pass that asks for nothing still tells of the refusal before it, so that another one has to follow."""
    rig.kube.fail("create", PODS, Forbidden("violates PodSecurity"), times=2)
    rig.apply()
    await rig.reconcile()
    await rig.reconcile()
    rig.apply(replicas=0)
    assert await rig.reconcile() == 0.5
    assert "violates PodSecurity" in rig.condition("Scheduled")[2]
    assert await rig.reconcile() is None
    assert "violates PodSecurity" not in rig.condition("Scheduled")[2]


async def test_a_worker_that_can_not_be_reached_in_the_middle_is_tried_again(rig):
    rig.apply()
    await rig.settle()
    rig.worker().finish_loading()
    rig.worker().refuse_next = [WorkerUnreachable("it does not answer in time")]
    await rig.reconcile()
    assert len(rig.errors) == 1
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_a_spec_that_no_schema_of_ours_let_pass_is_rejected_in_the_status(rig):
    rig.apply(model={"uri": "s3://bucket/model"})
    await rig.settle()
    assert rig.status["phase"] == "Rejected"
    assert "s3://bucket/model" in rig.condition("Accepted")[2]
    assert rig.pods == []


async def test_a_rejected_spec_is_told_at_every_look_to_those_who_keep_something_for_what_still_serves(rig):
    rig.apply(model={"uri": "s3://bucket/model"})
    await rig.settle()
    told = {(rig.key, rig.kube.peek(INFERENCE_DEPLOYMENTS, *rig.key)["metadata"]["uid"])}
    assert rig.told.rejections == told
    rig.told.rejections.clear()  # as an operator that starts anew knows nothing
    rig.kube.edit(INFERENCE_DEPLOYMENTS, *rig.key, lambda obj: obj["metadata"].update(labels={"a": "b"}))
    await rig.settle()
    assert rig.told.rejections == told


async def test_a_service_of_somebody_else_is_not_taken_over(rig):
    theirs = {"metadata": {"namespace": "team", "name": "tiny"}, "spec": {"ports": [{"port": 80}]}}
    rig.kube.put(SERVICES, theirs)
    rig.apply()
    await rig.settle()
    assert rig.condition("Accepted")[:2] == ("False", "ServiceNameTaken")
    assert rig.kube.peek(SERVICES, "team", "tiny")["spec"] == theirs["spec"]


async def test_an_event_that_can_not_be_written_stops_nothing(rig):
    rig.kube.fail("create", EVENTS, Forbidden("no"), times=99)
    await rig.serving()
    assert rig.status["phase"] == "Active"
    assert rig.events == []


async def test_conflicts_and_outages_of_the_api_server_only_delay(rig):
    rig.kube.fail("create", PODS, Conflict("changed"), times=2)
    rig.kube.fail("patch_status", INFERENCE_DEPLOYMENTS, Unavailable("down"), times=2)
    rig.apply()
    for _ in range(10):
        await rig.reconcile()
    assert len(rig.errors) == 2
    await rig.until_profiled()
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_a_service_that_the_server_does_not_take_is_told_in_its_words(rig):
    rig.kube.fail("apply", SERVICES, Invalid("spec.ports[0] is invalid"), times=2)
    rig.apply()
    await rig.reconcile()
    await rig.reconcile()
    assert rig.condition("Scheduled")[1:] == ("ChildRejected", "Service tiny: spec.ports[0] is invalid")
    await rig.settle()
    assert rig.condition("Scheduled")[0] == "True"
