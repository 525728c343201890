"""When a group begins and ends, as pure decisions over what was seen."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from dormouse_operator import groups, planner
from dormouse_operator.actions import CreateFollower, DeletePod, PutToSleep
from dormouse_operator.model import Lifecycle, Parallelism, WorkerState
from dormouse_operator.rollout import removal
from dormouse_operator.rollout.standing import muster
from dormouse_operator.testing_nouns import NOW, a_deployment, a_pod, a_worker, observed

PAIR = Parallelism(pipeline=2, scheduling_deadline_s=60)
LEADER = a_pod(num_ranks=2, group_size=2, created=NOW - timedelta(seconds=20))
FOLLOWER = a_pod(
    name=f"{LEADER.name}-1", uid="uid-f", ordinal=1, num_ranks=2, group_size=2, leader_uid=LEADER.uid, gate_open=True
)


def seen(leader, *followers, worker=None, **fields):
    deployment = a_deployment(parallelism=PAIR, **fields)
    return observed(worker, deployment=deployment, pods=(leader,), followers={leader.uid: followers})


def test_the_next_look_is_when_the_time_of_a_group_without_all_nodes_is_over():
    waiting = seen(LEADER, replace(FOLLOWER, is_scheduled=False))
    assert groups.next_deadline(waiting) == NOW + timedelta(seconds=40)
    assert groups.next_deadline(replace(waiting, now=NOW + timedelta(seconds=40))) is None, "it is told by now"
    assert groups.next_deadline(seen(LEADER, FOLLOWER)) is None


def test_a_group_that_lost_a_pod_is_no_replica_and_is_not_put_to_sleep_on_its_way_out():
    broken = seen(
        replace(LEADER, gate_open=False, gate_reason="GoingToSleep"),
        replace(FOLLOWER, has_ended=True),
        worker=a_worker(WorkerState.DRAINING),
        lifecycle=Lifecycle("Asleep", 60),
    )
    assert broken.replicas == ()
    assert not [action for action in planner.plan(broken).actions if isinstance(action, PutToSleep)]


def test_a_follower_that_is_missing_is_made_until_the_group_was_whole_once_and_ends_it_from_then_on():
    begun = replace(LEADER, gate_open=False, gate_reason="")
    assert CreateFollower(begun, 1) in groups.steps(seen(begun), [begun])
    assert seen(begun).group(begun).breach == ""
    whole = groups.steps(seen(begun, FOLLOWER), [begun])[0]
    assert (whole.pod, whole.is_open, whole.reason) == (begun, False, "GroupFormed")
    formed = replace(begun, gate_reason=whole.reason)
    assert seen(formed).group(formed).breach == f"pod {FOLLOWER.name} is gone"
    assert not [step for step in groups.steps(seen(formed), [formed]) if isinstance(step, CreateFollower)]
    assert not formed.has_opened


def test_a_group_of_an_older_revision_that_never_opened_has_nothing_to_keep_it():
    formed = replace(LEADER, revision="0000ffff", gate_open=False, gate_reason="GroupFormed")
    loading = seen(formed, FOLLOWER)
    assert muster(loading).ending == (formed,)
    assert removal.next_step(loading, formed) == DeletePod(formed), "nobody can have called it"


def test_a_group_of_which_only_followers_are_left_still_holds_its_devices():
    left = observed(pods=(), deployment=a_deployment(parallelism=PAIR), followers={"gone": (FOLLOWER, FOLLOWER)})
    assert muster(left).num_deleting == 1
