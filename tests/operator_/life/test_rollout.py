"""Another spec takes the place of the present one: by other pods, without a gap, and what a failure leaves."""

from __future__ import annotations

import pytest

from dormouse_kube.api import PODS
from dormouse_operator.model import WorkerState
from tests.operator_.kit import NEW, OLD, passes, serving, uids


@pytest.mark.parametrize("replicas", [1, 3])
async def test_a_roll_out_leaves_no_moment_without_all_replicas_and_never_exceeds_the_surge(rig, replicas):
    await rig.serving(replicas=replicas)
    before = set(rig.pods)
    rig.apply(engine=NEW)
    for _ in range(60):
        await passes(rig, 1)
        assert len(serving(rig)) >= replicas
        assert len(rig.pods) <= replicas + 1
        assert rig.status["phase"] == "Active"
        assert rig.condition("Ready")[0] == "True"
    assert len(rig.pods) == replicas
    assert not before & set(rig.pods)
    assert rig.condition("Progressing")[1] == "Complete"
    assert rig.status["readyReplicas"] == replicas


async def test_without_surge_at_most_so_many_are_missing(rig):
    await rig.serving(replicas=3, rollout={"maxSurge": 0, "maxUnavailable": 1})
    before = set(rig.pods)
    rig.apply(engine=NEW)
    for _ in range(60):
        await passes(rig, 1)
        assert len(serving(rig)) >= 2
        assert len(rig.pods) <= 3
    assert len(serving(rig)) == 3
    assert not before & set(rig.pods)


async def test_an_old_pod_is_drained_before_it_is_deleted(rig):
    await rig.serving()
    [old] = rig.pods
    busy = rig.worker()
    busy.running_requests = 1
    rig.apply(engine=NEW)
    await passes(rig, 20)
    assert old in rig.pods
    assert serving(rig) == [name for name in rig.pods if name != old], "its gate is shut"
    assert busy.state is WorkerState.DRAINING
    assert rig.condition("Progressing")[1] == "Surging", "complete is when nothing of the old is left"
    busy.running_requests = 0
    await passes(rig, 5)
    assert old not in rig.pods


async def test_a_worker_is_told_to_drain_only_when_the_endpoints_are_gone(rig):
    await rig.serving(replicas=2)
    leaving = rig.worker(1)
    rig.apply(replicas=1)
    await rig.reconcile()
    await rig.reconcile()
    assert "drain" not in leaving.commands, "the kubelet has not seen the gate yet"
    await passes(rig, 3)
    assert "drain" in leaving.commands
    assert len(rig.pods) == 1


async def test_a_scale_down_drains_and_gives_up_when_the_time_is_over(rig):
    await rig.serving(replicas=2, lifecycle={"drainTimeoutSeconds": 60})
    rig.worker(1).running_requests = 1
    rig.apply(replicas=1)
    await passes(rig, 6)
    assert len(rig.pods) == 2
    rig.clock.step(59)
    await passes(rig, 2)
    assert len(rig.pods) == 2
    rig.clock.step(1)
    await passes(rig, 2)
    assert len(rig.pods) == 1


async def test_a_scale_up_in_the_middle_of_a_drain_takes_the_pod_back(rig):
    await rig.serving(replicas=2)
    before = uids(rig)
    rig.worker(1).running_requests = 1
    rig.apply(replicas=1)
    await passes(rig, 6)
    rig.apply(replicas=2)
    await passes(rig, 6)
    assert uids(rig) == before
    assert len(serving(rig)) == 2


async def test_a_pod_that_is_cut_off_keeps_its_requests_until_the_time_is_over(rig):
    await rig.serving(replicas=2)
    address = rig.kube.everything(PODS)[1]["status"]["podIP"]
    rig.apply(replicas=1)
    await passes(rig, 1)
    worker = rig.workers.workers.pop(address)
    for _ in range(4):
        assert await rig.reconcile() == 0.5
    assert len(rig.pods) == 2
    rig.clock.step(60)
    await rig.reconcile()
    rig.workers.workers[address] = worker
    await passes(rig, 1)
    assert len(rig.pods) == 1


async def test_a_gate_that_was_shut_for_something_else_gives_no_less_time_to_drain(rig):
    rig.node.blocks = {"2": 1500}
    await rig.serving(replicas=2)
    rig.apply(replicas=3)
    await rig.settle()
    rig.worker(0).running_requests = rig.worker(1).running_requests = 1
    await passes(rig, 6)
    assert [rig.gate(i)["reason"] for i in (0, 1)] == ["Reallocating", "CacheAllocated"]
    rig.clock.step(1000)
    rig.apply(replicas=0)
    await passes(rig, 6)
    assert len(rig.pods) == 2, "both have the whole time"


async def test_the_old_spec_again_returns_at_once_to_the_pods_that_are_there(rig):
    await rig.serving(replicas=2)
    names, before = set(rig.pods), uids(rig)
    rig.apply(engine=NEW)
    await passes(rig, 3, load=False)
    [new] = set(rig.pods) - names
    rig.node.worker_of(new).fail("ModelNotFound", "gone")
    await passes(rig, 4)
    commands = [list(rig.node.worker_of(name).commands) for name in names]
    rig.apply(engine=OLD)
    await rig.reconcile()
    assert rig.condition("Ready")[:2] == ("True", "Serving")
    await rig.settle()
    assert uids(rig) == before
    assert [rig.node.worker_of(name).commands for name in names] == commands
    assert rig.condition("Progressing")[1] == "Complete"


async def test_the_return_keeps_the_image_of_the_old_pods_after_an_upgrade_of_the_operator(rig):
    await rig.serving()
    before = uids(rig)
    rig.default_image = "worker:2"
    rig.restart_operator()
    rig.apply(engine=NEW)
    await passes(rig, 3, load=False)
    assert rig.status["image"] == "worker:2"
    rig.apply(engine=OLD)
    await rig.settle()
    assert uids(rig) == before
    assert rig.status["image"] == "worker:1"


async def test_pods_that_never_served_go_at_once_when_the_spec_changes_again(rig):
    await rig.serving()
    [old] = rig.pods
    rig.apply(engine=NEW)
    await passes(rig, 3, load=False)
    [second] = set(rig.pods) - {old}
    rig.apply(engine={"device": "cpu", "maxNumSeqs": 8})
    await passes(rig, 3, load=False)
    assert second not in rig.pods
    assert serving(rig) == [old]
    await passes(rig, 12)
    assert len(serving(rig)) == 1
    assert old not in rig.pods


async def test_a_first_spec_that_can_not_start_is_replaced_at_once(rig):
    rig.apply(rollout={"maxSurge": 0, "maxUnavailable": 1})
    await rig.settle()
    rig.worker().fail("ModelNotFound", "gone")
    await rig.settle()
    rig.apply(engine=NEW)
    await passes(rig, 12)
    assert rig.status["phase"] == "Active"


async def test_an_old_pod_that_never_served_gives_its_device_back_before_the_new_one_serves(rig):
    rig.apply()
    await rig.settle()
    [old] = rig.pods
    rig.apply(engine=NEW)
    await passes(rig, 4, load=False)
    assert old not in rig.pods


async def test_an_old_worker_that_has_failed_gives_its_device_back_before_the_new_one_serves(rig):
    await rig.serving()
    [old] = rig.pods
    rig.worker().fail("GPUUnhealthy", "Xid 79")
    await rig.settle()
    rig.apply(engine=NEW)
    await passes(rig, 4, load=False)
    assert old not in rig.pods


async def test_of_the_old_pods_one_that_does_not_serve_goes_first(rig):
    await rig.serving(replicas=3, rollout={"maxSurge": 0, "maxUnavailable": 1})
    idle = rig.pods[1]
    rig.node.crash(idle, exit_code=1)
    await passes(rig, 1, load=False)
    rig.apply(engine=NEW)
    await passes(rig, 3, load=False)
    assert idle not in rig.pods
    assert len(serving(rig)) == 2


async def test_blocks_are_agreed_per_revision(rig):
    await rig.serving(replicas=2)
    before = list(rig.pods)
    rig.apply(engine=NEW)
    await passes(rig, 2, load=False)
    [new] = set(rig.pods) - set(before)
    rig.node.worker_of(new).num_gpu_blocks = 900
    await passes(rig, 6)
    assert rig.node.worker_of(new).allocated == 900
    left = [name for name in before if name in rig.pods]
    assert {rig.node.worker_of(name).allocated for name in left} == {2000}


async def test_a_sleeping_deployment_keeps_its_sleepers_until_the_new_ones_can_be_woken(rig):
    await rig.serving(lifecycle={"desiredState": "Asleep"})
    [old] = rig.pods
    rig.apply(engine=NEW)
    await passes(rig, 3, load=False)
    assert rig.node.worker_of(old).state is WorkerState.ASLEEP
    await passes(rig, 15)
    assert old not in rig.pods
    assert rig.status["phase"] == "Asleep"
    assert len(rig.pods) == 1


@pytest.mark.parametrize(
    "change", [{"lifecycle": {"drainTimeoutSeconds": 5}}, {"rollout": {"strategy": "SleepSwap"}}, {"replicas": 2}]
)
async def test_timings_limits_and_scale_restart_nothing(rig, change):
    await rig.serving(replicas=2)
    before = uids(rig)
    rig.apply(**change)
    await rig.settle()
    assert uids(rig) == before
    assert rig.condition("Progressing")[1] == "Complete"
    assert [rig.worker(i).commands for i in (0, 1)] == [["initialize_cache"]] * 2


async def test_a_lost_pod_is_no_roll_out(rig):
    await rig.serving(rollout={"progressDeadlineSeconds": 100})
    rig.clock.step(1000)
    await rig.kube.delete(PODS, "team", rig.pods[0])
    await rig.settle()
    assert rig.condition("Progressing")[:2] == ("True", "Complete")


async def test_a_rejected_spec_makes_no_progress(rig):
    rig.apply(template={"metadata": {"labels": {"inference.dormouse.dev/replica": "7"}}})
    await rig.settle()
    assert rig.condition("Progressing")[:2] == ("Unknown", "NotAccepted")
