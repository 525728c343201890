"""Whom a pass asks, and what it makes of the answers: decided from facts, which stay as they are."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dormouse_operator.decide.questions import questions_of
from dormouse_operator.decide.release import Release
from dormouse_operator.decide.settle import settle
from dormouse_operator.model import Activity, Ladder, Observed, Rank, Rung, WorkerState
from dormouse_operator.testing.nouns import NOW, REVISION, a_deployment, a_pod, a_worker, recorded

RELEASE = Release(default_image="worker:1")
IDLE = Ladder(
    rung=Rung.LEVEL1, since=NOW - timedelta(seconds=9), reason="idle", idle_since=NOW - timedelta(seconds=600)
)
ZERO = Ladder(rung=Rung.ZERO, since=NOW, reason="idle", idle_since=NOW - timedelta(hours=9))
QUIET = Activity(
    in_flight=0, held=0, quiet_s=600, awake_workers=1, running=0, waiting=0, mean_kv_cache_usage=0.0
)  # as gateways tell it


def facts(*, ladder=None, replicas=1, pods=(), **fields):
    """Return what was observed of a deployment whose status has this ladder."""
    known = recorded(2000, Rank(0, a_pod().name, 2000, 0, 2000, request_counter=5))
    status = type(known)(kv_cache=known.kv_cache, ladder=ladder)
    return Observed(deployment=a_deployment(replicas=replicas, recorded=status), now=NOW, pods=pods, **fields)


def settled(seen):
    return settle(seen, questions_of(seen, RELEASE), RELEASE)


def answering(**fields):
    """Return the answer of the first pod's worker."""
    return {a_pod().name: a_worker(**{"pod_uid": "uid-0", **fields})}


def test_a_worker_at_rest_is_asked_only_before_its_deployment_sleeps():
    awake = questions_of(facts(pods=(a_pod(),)), RELEASE)
    assert (awake.asked, list(awake.at_rest)) == ((), [a_pod().name])
    asleep = questions_of(facts(pods=(a_pod(),), ladder=IDLE, activity=QUIET), RELEASE)
    assert (asleep.asked, asleep.at_rest) == ((a_pod(),), {})


def test_who_refused_a_command_or_ended_is_known_only_by_asking():
    refused = questions_of(facts(pods=(a_pod(),), refusals={a_pod().name: "no"}), RELEASE)
    assert refused.asked == (a_pod(),)
    assert questions_of(facts(pods=(a_pod(has_ended=True),)), RELEASE).asked == ()


@pytest.mark.parametrize(
    ("ladder", "pods", "looks"),
    [
        (None, (), True),
        (ZERO, (), False),
        (ZERO, (a_pod(),), True),  # a request that its worker tells of wakes all
    ],
)
def test_a_budget_is_looked_for_where_more_than_one_replica_may_be_wanted(ladder, pods, looks):
    assert questions_of(facts(replicas=4, ladder=ladder, pods=pods), RELEASE).looks_for_budget is looks
    assert not questions_of(facts(replicas=1, ladder=ladder, pods=pods), RELEASE).looks_for_budget


def test_what_is_wanted_stands_beside_what_the_user_asked_for():
    assert settled(facts(replicas=4)).wanted_replicas == 4
    situation = settled(facts(replicas=4, ladder=ZERO))
    assert (situation.wanted_replicas, situation.num_away, situation.deployment.replicas) == (0, 4, 4)


@pytest.mark.parametrize(
    ("told", "rung"),
    [
        ({"request_counter": 5}, Rung.LEVEL1),
        ({"request_counter": 6}, Rung.ACTIVE),
        ({"request_counter": 5, "running_requests": 1}, Rung.ACTIVE),
        ({"request_counter": 6, "pod_uid": "of before"}, Rung.LEVEL1),
        ({"request_counter": 6, "settings_digest": "another"}, Rung.LEVEL1),
    ],
)
def test_a_request_that_a_worker_tells_of_wakes_what_was_to_sleep_if_its_words_count(told, rung):
    seen = facts(pods=(a_pod(),), ladder=IDLE, activity=QUIET, answers=answering(**told))
    assert settled(seen).rung is rung


def test_an_answer_counts_if_it_is_of_this_pod_and_of_the_settings_on_its_label():
    pod = a_pod(gate_open=False)
    of_another_pod = settled(facts(pods=(pod,), answers=answering(pod_uid="of before")))
    assert (of_another_pod.workers, of_another_pod.strangers) == ({}, {})
    assert "another pod" in of_another_pod.unreachable[pod.name]
    stranger = settled(facts(pods=(pod,), answers=answering(settings_digest="another")))
    assert (stranger.workers, list(stranger.strangers)) == ({}, [pod.name])
    assert "other settings" in stranger.unreachable[pod.name]
    own = settled(facts(pods=(pod,), answers=answering(settings_digest=REVISION)))
    assert (own.workers[pod.name].state, own.unreachable) == (WorkerState.READY, {})


def test_who_says_an_epoch_that_nobody_had_is_condemned_and_not_heard():
    pod = a_pod(gate_open=False)
    situation = settled(facts(pods=(pod,), answers=answering(epoch=2**31 - 1), unreachable={"b": "no answer"}))
    assert (situation.workers, list(situation.condemned)) == ({}, [pod.name])
    assert situation.unreachable == {"b": "no answer"}
