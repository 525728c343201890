"""When a group begins and ends, as pure decisions over what was seen."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from dormouse_operator.decide import groups, planner
from dormouse_operator.decide.actions import CreateFollower, DeletePod, PutToSleep
from dormouse_operator.decide.findings import find
from dormouse_operator.decide.rollout import removal
from dormouse_operator.decide.rollout.inventory import classify_pods
from dormouse_operator.model import Lifecycle, Parallelism, WorkerState
from dormouse_operator.testing.nouns import NOW, a_deployment, a_pod, a_situation, a_worker, but

PAIR = Parallelism(pipeline=2, scheduling_deadline_s=60)
LEADER = a_pod(num_ranks=2, group_size=2, created=NOW - timedelta(seconds=20))
FOLLOWER = a_pod(
    name=f"{LEADER.name}-1", uid="uid-f", ordinal=1, num_ranks=2, group_size=2, leader_uid=LEADER.uid, gate_open=True
)


def seen(leader, *followers, worker=None, **fields):
    deployment = a_deployment(parallelism=PAIR, **fields)
    return a_situation(worker, deployment=deployment, pods=(leader,), followers={leader.uid: followers})


def test_the_next_look_is_when_the_time_of_a_group_without_all_nodes_is_over():
    waiting = seen(LEADER, replace(FOLLOWER, is_scheduled=False))
    assert groups.next_deadline(waiting) == NOW + timedelta(seconds=40)
    assert groups.next_deadline(but(waiting, now=NOW + timedelta(seconds=40))) is None, "it is told by now"
    begun = replace(LEADER, created=NOW, index=1, name="b", uid="uid-b", is_scheduled=False)
    both = seen(LEADER, replace(FOLLOWER, is_scheduled=False), replicas=2)
    both = but(both, pods=(LEADER, begun), now=NOW + timedelta(seconds=40))
    assert groups.next_deadline(both) == NOW + timedelta(seconds=60), "the youngest is late, and one ends"
    assert groups.next_deadline(seen(LEADER, FOLLOWER)) is None


def late(*pods, wanted=None):
    """Return what is seen of groups without followers' nodes, long after their time; `pods` are leaders."""
    followers = {pod.uid: (replace(FOLLOWER, leader_uid=pod.uid, is_scheduled=False),) for pod in pods}
    deployment = a_deployment(parallelism=PAIR, replicas=wanted or len(pods))
    return a_situation(
        *[None] * len(pods), deployment=deployment, pods=pods, followers=followers, now=NOW + seconds(999)
    )


def group_of(index, *, age_s=20.0, **fields):
    """Return the leader of a group that begun so long ago."""
    return replace(LEADER, index=index, name=f"g{index}", uid=f"uid-{index}", **fields, created=NOW - seconds(age_s))


def seconds(number):
    return timedelta(seconds=number)


def released(view):
    return [step.pod.name for step in groups.steps(view, []) if isinstance(step, DeletePod)]


def test_of_groups_that_hold_nodes_in_vain_the_youngest_gives_them_back():
    assert released(late(group_of(0), group_of(1))) == ["g1"]
    assert released(late(group_of(0, age_s=5), group_of(1))) == ["g0"]
    assert released(late(group_of(0), group_of(1, is_scheduled=False))) == ["g0"], "the other has nothing to give"
    assert released(late(group_of(0, is_scheduled=False))) == ["g0"], "its time runs anew"


def test_nothing_is_given_back_before_the_time_or_while_pods_come_and_go():
    assert released(but(late(group_of(0)), now=NOW)) == []
    assert released(late(group_of(0), group_of(1, age_s=-950))) == [], "a group has just begun anew"
    assert released(late(group_of(0), wanted=2)) == [], "another group is still to begin"
    assert released(late(group_of(0), replace(group_of(1), is_deleting=True), wanted=1)) == []
    orphan = replace(FOLLOWER, leader_uid="gone", is_deleting=True)
    left = late(group_of(0))
    assert released(but(left, followers={**left.observed.followers, "gone": (orphan,)})) == []


def test_a_group_that_lost_a_pod_is_no_replica_and_is_not_put_to_sleep_on_its_way_out():
    broken = seen(
        replace(LEADER, gate_open=False, gate_reason="GoingToSleep"),
        replace(FOLLOWER, has_ended=True),
        worker=a_worker(WorkerState.DRAINING),
        lifecycle=Lifecycle("Asleep", 60),
    )
    assert broken.replicas == ()
    assert not [action for action in planner.plan(broken, find(broken)).actions if isinstance(action, PutToSleep)]


def test_a_follower_that_is_missing_is_made_until_the_group_was_whole_once_and_ends_it_from_then_on():
    begun = replace(LEADER, gate_open=False, gate_reason="")
    assert CreateFollower(begun, 1) in groups.steps(seen(begun), [begun])
    assert seen(begun).group(begun).broken_reason == ""
    whole = groups.steps(seen(begun, FOLLOWER), [begun])[0]
    assert (whole.pod, whole.is_open, whole.reason) == (begun, False, "GroupFormed")
    formed = replace(begun, gate_reason=whole.reason)
    assert seen(formed).group(formed).broken_reason == f"pod {FOLLOWER.name} is gone"
    assert not [step for step in groups.steps(seen(formed), [formed]) if isinstance(step, CreateFollower)]
    assert not formed.has_opened


def test_a_group_of_an_older_revision_that_never_opened_has_nothing_to_keep_it():
    formed = replace(LEADER, revision="0000ffff", gate_open=False, gate_reason="GroupFormed")
    loading = seen(formed, FOLLOWER)
    assert classify_pods(loading).ending == (formed,)
    assert removal.next_step(loading, formed) == DeletePod(formed), "nobody can have called it"


def test_a_group_of_which_only_followers_are_left_still_holds_its_devices():
    left = a_situation(pods=(), deployment=a_deployment(parallelism=PAIR), followers={"gone": (FOLLOWER, FOLLOWER)})
    assert classify_pods(left).num_deleting == 1
