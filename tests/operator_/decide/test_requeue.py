"""When a deployment is looked at again though nothing told of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from dormouse_operator.decide.actions import POLL_S, Requeue
from dormouse_operator.decide.findings import find
from dormouse_operator.decide.planner import plan
from dormouse_operator.model import WorkerState
from dormouse_operator.testing.nouns import NOW, a_deployment, a_situation, a_worker, recorded

TOLD_S = 15.0
FOUR = recorded(4)


def requeue_of(state, due_s):
    """Return what is planned for one worker in this state, where time alone changes something after `due_s`."""
    due = None if due_s is None else NOW + timedelta(seconds=due_s)
    seen = a_situation(a_worker(state, blocks=4), deployment=a_deployment(recorded=FOUR))
    seen = replace(seen, ladder_due=due)
    return plan(seen, find(seen)).requeue


@pytest.mark.parametrize(
    ("requeue", "after_s"),
    [
        (Requeue(), None),
        (Requeue(due_s=40.0), 40.0),
        (Requeue(due_s=0.0), 0.0),
        (Requeue(polls=True), TOLD_S),
        (Requeue(polls=True, due_s=40.0), TOLD_S),
        (Requeue(polls=True, due_s=3.0), 3.0),
        (Requeue(polls=True, due_s=0.0), POLL_S),
    ],
    ids=repr,
)
def test_the_sooner_of_poll_and_due_time_counts(requeue, after_s):
    assert requeue.after_s(TOLD_S) == after_s


def test_a_poll_that_is_sooner_than_the_least_pause_is_kept():
    assert Requeue(polls=True, due_s=0.0).after_s(0.2) == 0.2


def test_a_worker_that_changes_by_itself_hides_no_due_time():
    assert requeue_of(WorkerState.DRAINING, 3.0) == Requeue(polls=True, due_s=3.0)


def test_one_that_stays_as_it_is_is_not_polled():
    assert requeue_of(WorkerState.READY, 3.0) == Requeue(due_s=3.0)


def test_what_is_over_is_due_now():
    assert requeue_of(WorkerState.READY, -3.0) == Requeue(due_s=0.0)


def test_where_nothing_is_due_only_a_change_is_a_reason():
    assert requeue_of(WorkerState.READY, None) == Requeue()
