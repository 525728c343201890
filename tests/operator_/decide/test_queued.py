"""Pods that somebody holds before a node is looked for: what is said of them, and that groups wait whole."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from dormouse_operator.decide import groups
from dormouse_operator.decide.actions import DeletePod
from dormouse_operator.decide.conditions import scheduled
from dormouse_operator.model import Condition, Parallelism
from dormouse_operator.testing.nouns import NOW, a_deployment, a_pod, a_situation

ACCEPTED = Condition("Accepted", "True", "Accepted", "")
GATE = "kueue.x-k8s.io/admission"
HELD = {"is_scheduled": False, "scheduling_gates": (GATE,), "unscheduled_message": "gates"}
PAIR = Parallelism(pipeline=2, scheduling_deadline_s=60)
LEADER = a_pod(num_ranks=2, group_size=2, created=NOW - timedelta(seconds=999), queue="team-a")
FOLLOWER = replace(LEADER, name=f"{LEADER.name}-1", uid="uid-f", ordinal=1, leader_uid=LEADER.uid)


def single(**fields):
    return a_situation(None, pods=(a_pod(**fields),))


def pair(**fields):
    held = replace(FOLLOWER, **fields)
    deployment = a_deployment(parallelism=PAIR)
    return a_situation(None, deployment=deployment, pods=(LEADER,), followers={LEADER.uid: (held,)})


@pytest.mark.parametrize(
    ("situation", "reason", "word"),
    [
        (single(**HELD, queue="team-a"), "WaitingForQueue", "team-a"),
        (single(**HELD), "SchedulingGated", GATE),
        (pair(**HELD), "WaitingForQueue", FOLLOWER.name),
        (pair(is_scheduled=False, unscheduled_message="no room"), "WaitingForNode", "no room"),
        (pair(), "Scheduled", "2 of 2"),
    ],
)
def test_the_condition_says_who_holds_a_pod(situation, reason, word):
    condition = scheduled.evaluate(situation, ACCEPTED)
    assert condition.reason == reason
    assert word in condition.message


def test_a_group_that_a_queue_admits_whole_is_not_released_for_another():
    late = pair(is_scheduled=False)
    assert not [step for step in groups.steps(late, []) if isinstance(step, DeletePod)]
    assert groups.next_deadline(late) is None
