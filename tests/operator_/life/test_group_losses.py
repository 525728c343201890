"""A group that loses a pod, or does not get all: what becomes of it and of the others, and who is told."""

from __future__ import annotations

import pytest

from dormouse_kube.api import PODS
from dormouse_kube.errors import Forbidden
from tests.operator_.kit import NEW, PAIR, followers, leaders, passes, uids


def groups(rig):
    """Return the names of each group's pods, by replica."""
    return [[name for name in rig.pods if name.startswith(leader)] for leader in leaders(rig)]


async def lose(rig, name):
    """Have a pod be gone without a trace, as after the loss of its node."""
    await rig.kube.delete(PODS, "team", name)
    rig.kube.finish_deletion(PODS, "team", name)


@pytest.mark.parametrize("end", ["gone", "deleted", "evicted"])
async def test_a_follower_that_is_lost_ends_its_group_and_no_other(rig, end):
    await rig.serving(parallelism=PAIR, replicas=2)
    lost, kept = followers(rig)
    whole = {name: rig.kube.peek(PODS, "team", name)["metadata"]["uid"] for name in (kept, leaders(rig)[1])}
    before = uids(rig)
    if end == "gone":
        await lose(rig, lost)
    elif end == "deleted":
        await rig.kube.delete(PODS, "team", lost)
    else:
        rig.kube.edit(PODS, "team", lost, lambda pod: pod["status"].update(phase="Failed", message="full"))
    await rig.reconcile()
    assert rig.condition("Scheduled")[1] == "GroupBroken"
    assert lost in rig.condition("Scheduled")[2]
    await passes(rig, 15)
    assert {name: rig.kube.peek(PODS, "team", name)["metadata"]["uid"] for name in whole} == whole
    assert len(uids(rig) - before) == 2, "both pods of the group are new"
    assert (rig.status["phase"], rig.status["readyReplicas"]) == ("Active", 2)
    assert rig.node.worker_of(leaders(rig)[0]).commands == ["initialize_cache"], "it profiled and agreed anew"
    [told] = [event for event in rig.events if event.startswith("GroupBroken")]
    assert lost in told


async def test_a_leader_that_is_lost_takes_its_followers_along(rig):
    await rig.serving(parallelism={"pipeline": 3})
    before = uids(rig)
    await lose(rig, leaders(rig)[0])
    await passes(rig, 12)
    assert len(uids(rig)) == 3
    assert not uids(rig) & before
    assert rig.status["phase"] == "Active"


async def test_a_new_group_begins_when_nothing_of_the_old_is_left(rig):
    await rig.serving(parallelism=PAIR)
    await lose(rig, leaders(rig)[0])
    await rig.reconcile()
    await rig.reconcile()
    assert leaders(rig) == []
    assert len(followers(rig)) == 1, "it is still ending"


async def test_pods_without_a_node_are_waited_for_and_named_when_the_time_is_over(rig):
    rig.apply(parallelism={**PAIR, "schedulingDeadlineSeconds": 60}, replicas=2)
    await rig.reconcile()
    stuck = f"{leaders(rig)[1]}-1"
    rig.node.unplaced = {stuck}
    await passes(rig, 15)
    assert rig.condition("Scheduled")[1] == "WaitingForNode"
    assert await rig.reconcile() <= 60
    rig.clock.step(60)
    await rig.reconcile()
    status, reason, words = rig.condition("Scheduled")
    assert (status, reason) == ("False", "Unschedulable")
    assert f"group 1: no node for 1 of 2 pods, {stuck} ({stuck}: 0/1 nodes" in words
    assert "after 60 s" in words
    assert rig.status["readyReplicas"] == 1, "the other group serves"
    rig.node.unplaced = set()
    await passes(rig, 15)
    assert (rig.condition("Scheduled")[0], rig.status["readyReplicas"]) == ("True", 2)


async def test_a_group_that_got_only_some_nodes_gives_them_back_when_its_time_is_over_and_begins_anew(rig):
    rig.apply(parallelism={**PAIR, "schedulingDeadlineSeconds": 60}, replicas=2)
    await rig.reconcile()
    rig.node.unplaced = {f"{name}-1" for name in leaders(rig)}
    await passes(rig, 5)
    elder, younger = ({rig.kube.peek(PODS, "team", name)["metadata"]["uid"] for name in pair} for pair in groups(rig))
    rig.clock.step(60)
    await passes(rig, 8)
    assert uids(rig) & elder == elder, "the elder keeps what it has"
    assert not uids(rig) & younger
    assert len(uids(rig)) == 4, "the younger waits again"
    rig.clock.step(60)
    await passes(rig, 8)
    assert uids(rig) & elder == elder, "one at a time, and the youngest first"
    rig.node.unplaced = set()
    await passes(rig, 15)
    assert rig.status["readyReplicas"] == 2


async def test_a_follower_that_is_refused_is_told_and_its_leader_waits(rig):
    rig.apply(parallelism=PAIR)
    await rig.reconcile()
    [leader] = uids(rig)
    rig.kube.fail("create", PODS, Forbidden("exceeded quota"), times=3)
    for _ in range(3):
        await rig.reconcile()
    assert rig.condition("Scheduled")[1:] == ("PodRejected", f"pod {leaders(rig)[0]}-1: exceeded quota")
    await rig.until_profiled()
    await rig.settle()
    assert rig.status["phase"] == "Active"
    assert leader in uids(rig), "nothing was begun anew"


async def test_a_follower_that_crashes_again_and_again_is_named_with_its_ranks_and_left_in_its_pod(rig):
    await rig.serving(parallelism={**PAIR, "tensor": 2})
    before = uids(rig)
    [follower] = followers(rig)
    rig.node.crash(follower, exit_code=1, message="no route to host", restarts=False)
    await passes(rig, 8)
    words = f"pod {follower} (ranks 2 to 3): exit code 1, restarted 1 times: no route to host"
    assert rig.condition("ModelLoaded")[1:] == ("WorkerCrashed", words)
    assert rig.condition("Degraded") == ("True", "WorkerCrashed", words)
    assert rig.status["phase"] == "Failed"
    assert uids(rig) == before
    rig.node.crash(follower, exit_code=1)
    await passes(rig, 8)
    assert (rig.status["phase"], uids(rig)) == ("Active", before)


async def test_a_roll_out_stops_when_a_new_follower_crashes(rig):
    await rig.serving(parallelism=PAIR)
    [old] = leaders(rig)
    rig.apply(engine=NEW)
    await passes(rig, 4, load=False)
    [new] = [name for name in followers(rig) if not name.startswith(old)]
    rig.node.crash(new, exit_code=3, restarts=False)
    await passes(rig, 10)
    assert rig.condition("Progressing")[1] == "WorkerFailed"
    assert f"pod {new} ended with exit code 3" in rig.condition("Progressing")[2]
    assert old in leaders(rig)
