"""The rungs that a whole life does not pass: what the kubelet and odd reports lead to."""

from __future__ import annotations

import pytest

from dormouse_kube.api import PODS
from dormouse_operator.model import WorkerState


def container_waits(rig, reason, message=""):
    """Have the kubelet say why the first pod's container does not run."""

    def edit(pod):
        pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": reason, "message": message}}

    rig.kube.edit(PODS, "team", rig.pods[0], edit)


async def test_an_image_that_can_not_be_pulled_is_told_alike_while_the_kubelet_backs_off(rig):
    rig.apply()
    await rig.settle()
    container_waits(rig, "ErrImagePull", "no such image")
    await rig.reconcile()
    first = rig.condition("ModelLoaded")
    container_waits(rig, "ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: no such image')
    await rig.reconcile()
    assert rig.condition("ModelLoaded") == first
    assert first[1:] == ("ImagePullFailed", f"pod {rig.pods[0]}: no such image")
    assert rig.status["phase"] == "Failed"


async def test_a_container_that_can_not_be_made_is_told_in_the_kubelets_words(rig):
    rig.apply()
    await rig.settle()
    container_waits(rig, "CreateContainerConfigError", "image has non-numeric user")
    await rig.reconcile()
    assert rig.condition("ModelLoaded")[1] == "ContainerNotStarted"
    assert "non-numeric user" in rig.condition("ModelLoaded")[2]


async def test_a_worker_that_loads_again_after_a_crash_says_how_it_ended(rig):
    rig.apply()
    await rig.settle()
    rig.node.crash(rig.pods[0], exit_code=137)
    await rig.reconcile()
    assert "is loading (after exit code 137, restarted 1 times)" in rig.condition("ModelLoaded")[2]


async def test_a_worker_that_was_asked_to_end_has_not_failed(rig):
    await rig.serving()
    rig.node.crash(rig.pods[0], exit_code=0, restarts=False)
    await rig.reconcile()
    assert rig.condition("ModelLoaded")[:2] == ("False", "WorkerEnded")
    assert rig.status["phase"] == "Starting"
    assert not [event for event in rig.events if "exit code" in event]


async def test_a_worker_that_does_not_answer_is_told_with_the_reason(rig):
    rig.apply()
    await rig.settle()
    rig.workers.workers.clear()
    await rig.reconcile()
    assert rig.condition("ModelLoaded")[1] == "WorkerStarting"
    assert "does not accept connections" in rig.condition("ModelLoaded")[2]


@pytest.mark.parametrize("field", ["pod_uid", "settings_digest"])
async def test_an_answer_of_another_pod_or_of_other_settings_does_not_count(rig, field):
    rig.apply()
    await rig.settle()
    rig.worker().finish_loading()
    setattr(rig.worker(), field, "other")
    await rig.reconcile()
    assert "another pod or other settings" in rig.condition("ModelLoaded")[2]
    assert rig.worker().commands == []


async def test_a_report_of_no_blocks_is_too_little_memory(rig):
    rig.node.blocks = {"0": 0}
    rig.apply()
    await rig.until_profiled()
    await rig.settle()
    assert rig.condition("MemoryProfiled")[:2] == ("False", "InsufficientMemory")
    assert rig.condition("BlocksAgreed")[:2] == ("Unknown", "NoReports")
    assert rig.status["phase"] == "Failed"


async def test_a_failure_after_the_profile_belongs_to_the_cache(rig):
    await rig.serving()
    rig.worker().fail("GoldenTokensDiffer", "token 3 differs", has_report=True)
    rig.node.tick()
    await rig.settle()
    assert rig.condition("CacheAllocated") == ("False", "GoldenTokensDiffer", f"pod {rig.pods[0]}: token 3 differs")
    assert rig.condition("Ready")[0] == "False"


async def test_a_failed_worker_without_a_reason_points_to_its_log(rig):
    rig.apply()
    await rig.settle()
    rig.worker().state = WorkerState.FAILED
    await rig.reconcile()
    assert rig.condition("ModelLoaded")[1] == "Internal"
    assert "log" in rig.condition("ModelLoaded")[2]


async def test_times_change_only_when_a_status_flips(rig):
    rig.apply()
    await rig.settle()
    before = {item["type"]: item["lastTransitionTime"] for item in rig.status["conditions"]}
    rig.clock.step(60)
    rig.worker().finish_loading()
    await rig.settle()
    after = {item["type"]: item["lastTransitionTime"] for item in rig.status["conditions"]}
    assert {name for name in after if after[name] != before[name]} == {
        "ModelLoaded",
        "MemoryProfiled",
        "BlocksAgreed",
        "CacheAllocated",
        "Ready",
        "Available",
    }
