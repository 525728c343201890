"""How deep a deployment should sleep: whatever happens, never deeper than the evidence allows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dormouse_operator.decide.prewarm import last_firing, next_firing
from dormouse_operator.decide.sleep_evidence import Evidence, gather, has_new_requests
from dormouse_operator.decide.sleep_ladder import Decision, decide
from dormouse_operator.model import (
    Condition,
    Ladder,
    Lifecycle,
    Prewarm,
    Rank,
    RecordedCondition,
    RecordedStatus,
    Rung,
    Scaling,
    Turn,
    WorkerState,
)
from dormouse_operator.testing.nouns import a_deployment, a_pod, a_worker, recorded
from tests.operator_.ladders import quiet

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TEN = Scaling(max_replicas=8, target_outstanding=10)
LIFECYCLE = Lifecycle("Auto", 60, level1_after_s=600, level2_after_s=1800, zero_after_s=7200)


def ago(seconds):
    return NOW - timedelta(seconds=seconds)


def evidence(**fields):
    """Return the evidence of a deployment that has served and been silent for ever."""
    served = {"now": NOW, "lifecycle": LIFECYCLE, "ladder": None, "serving_since": ago(10**7), "activity": quiet()}
    return Evidence(**{**served, **fields})


def on(rung, *, idle_s, for_s=0, **fields):
    return Ladder(rung=rung, since=ago(for_s), reason="idle", idle_since=ago(idle_s), **fields)


@pytest.mark.parametrize(
    ("silence_s", "rung", "due_s"),
    [
        (599, Rung.ACTIVE, 1),
        (600, Rung.LEVEL1, 1200),
        (1799, Rung.LEVEL1, 1),
        (1800, Rung.LEVEL2, 5400),
        (7200, Rung.ZERO, None),
    ],
)
def test_each_rung_comes_when_its_silence_is_reached_and_the_next_look_is_at_the_next_rung(silence_s, rung, due_s):
    decision = decide(evidence(activity=quiet(silence_s)))
    assert decision.rung is rung
    assert decision.due == (None if due_s is None else NOW + timedelta(seconds=due_s))


def test_what_never_is_due_is_passed_over():
    only_zero = replace(LIFECYCLE, level1_after_s=None, level2_after_s=None)
    assert decide(evidence(lifecycle=only_zero, activity=quiet(1800))).due == NOW + timedelta(seconds=5400)
    assert decide(evidence(lifecycle=only_zero, activity=quiet(7200))).rung is Rung.ZERO
    never = replace(only_zero, zero_after_s=None)
    assert decide(evidence(lifecycle=never)) == Decision()
    assert decide(evidence(lifecycle=never, ladder=on(Rung.LEVEL1, idle_s=9000))).rung is Rung.LEVEL1


@pytest.mark.parametrize("order", ["Active", "Asleep", "Zero"])
def test_an_order_has_no_ladder(order):
    ladder = on(Rung.LEVEL2, idle_s=2000)
    assert decide(evidence(lifecycle=replace(LIFECYCLE, desired_state=order), ladder=ladder)) == Decision()


def test_silence_counts_from_when_it_serves_again_and_never_ends_before_the_least_time():
    woken = Ladder(rung=Rung.ACTIVE, since=ago(400), reason="request")
    assert decide(evidence(ladder=woken, serving_since=ago(300))).due == NOW + timedelta(seconds=300)
    thrifty = replace(LIFECYCLE, level1_after_s=5, min_active_s=301)
    assert decide(evidence(ladder=woken, lifecycle=thrifty, serving_since=ago(300))).due == NOW + timedelta(seconds=1)


def test_an_intent_or_a_prewarm_while_awake_begins_the_silence_anew():
    asked = ago(100).isoformat()
    assert decide(evidence(wake_intent=asked)).due == NOW + timedelta(seconds=500)
    fired = replace(LIFECYCLE, prewarm=(Prewarm("50 11 * * *"),))
    assert decide(evidence(lifecycle=fired, activity=quiet(601))).rung is Rung.LEVEL1
    at = evidence(lifecycle=fired, now=NOW - timedelta(seconds=60))
    assert decide(at).due == NOW


@pytest.mark.parametrize("intent", ["2027-01-01T00:00:00Z", "yesterday", "2026-03-01T11:59:59"])
def test_an_intent_that_tells_no_time_keeps_nobody_awake_but_wakes_once(intent):
    assert decide(evidence(wake_intent=intent)).rung is Rung.ZERO
    asleep = on(Rung.LEVEL1, idle_s=600)
    woken = decide(evidence(ladder=asleep, wake_intent=intent)).ladder
    assert (woken.rung, woken.wake_intent) == (Rung.ACTIVE, intent)
    known = replace(asleep, wake_intent=intent)
    assert decide(evidence(ladder=known, wake_intent=intent, activity=quiet(600))).rung is Rung.LEVEL1


@pytest.mark.parametrize(
    ("wanted_ago_s", "rung"),
    [(None, Rung.LEVEL1), (600.0, Rung.LEVEL1), (599.0, Rung.ACTIVE), (0.0, Rung.ACTIVE)],
)
def test_who_was_wanted_since_the_rung_began_wakes_also_while_a_gateway_is_not_heard_of(wanted_ago_s, rung):
    asleep = on(Rung.LEVEL1, idle_s=1200, for_s=600)
    assert decide(evidence(ladder=asleep, activity=None, wanted_ago_s=wanted_ago_s)).rung is rung


def test_who_is_wanted_now_wakes_though_the_operator_that_ordered_the_sleep_had_a_clock_that_is_ahead():
    assert decide(evidence(ladder=on(Rung.LEVEL1, idle_s=0, for_s=-60), activity=None, wanted_ago_s=0.0)).rung is (
        Rung.ACTIVE
    )


def test_a_prewarm_since_the_rung_began_wakes_and_the_next_one_is_waited_for():
    lifecycle = replace(LIFECYCLE, prewarm=(Prewarm("0 12 * * *"),))
    asleep = on(Rung.LEVEL1, idle_s=1200, for_s=600)
    assert decide(evidence(lifecycle=lifecycle, ladder=asleep)).ladder.reason == "prewarm"
    before = evidence(lifecycle=lifecycle, ladder=asleep, now=ago(60))
    assert (decide(before).rung, decide(before).due) == (Rung.LEVEL1, NOW)
    unheard = replace(before, activity=None)
    assert decide(unheard).due == NOW


def test_a_cron_is_meant_in_its_time_zone_also_over_the_change_to_summer_time():
    berlin = (Prewarm("30 2 * * *", "Europe/Berlin"),)
    night = datetime(2026, 3, 29, 0, 0, tzinfo=UTC)
    assert next_firing(berlin, night) == datetime(2026, 3, 29, 1, 0, tzinfo=UTC), "half past two does not exist"
    assert last_firing(berlin, night) == datetime(2026, 3, 28, 1, 30, tzinfo=UTC)
    autumn = datetime(2026, 10, 25, 0, 0, tzinfo=UTC)
    assert next_firing(berlin, autumn) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert next_firing(berlin, datetime(2026, 10, 25, 0, 30, tzinfo=UTC)) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
    assert last_firing((Prewarm("0 12 * * *"),), NOW) == NOW
    assert last_firing((Prewarm("0 12 * * *"),), NOW + timedelta(microseconds=1)) == NOW
    assert (last_firing((), NOW), next_firing((), NOW)) == (None, None)


def test_a_worker_that_runs_a_request_or_took_one_in_since_is_stirred():
    known = recorded(2000, Rank(0, "a", 2000, 0, 2000, request_counter=7))
    assert not has_new_requests(known, {"a": a_worker(request_counter=7), "b": a_worker(request_counter=3)})
    assert has_new_requests(known, {"a": a_worker(request_counter=8)})
    assert has_new_requests(known, {"b": a_worker(WorkerState.DRAINING, running_requests=1)})
    assert not has_new_requests(known, {"a": a_worker(WorkerState.ASLEEP, request_counter=8)})


def test_a_start_is_no_rest_and_what_slept_once_needs_only_one_replica_to_serve():
    def facts(status):
        return gather(a_deployment(recorded=status), None, NOW).serving_since

    def conditions(**since):
        return {
            name: RecordedCondition(Condition(name, "True" if time else "False", "x", ""), time)
            for name, time in since.items()
        }

    both = RecordedStatus(conditions=conditions(Ready=ago(10), Available=ago(20)))
    assert facts(both) == ago(10)
    assert facts(RecordedStatus(conditions=conditions(Ready=None, Available=ago(20)))) is None
    woken = Ladder(rung=Rung.ACTIVE, since=ago(30), reason="request")
    one = RecordedStatus(conditions=conditions(Ready=None, Available=ago(20)), ladder=woken)
    assert facts(one) == ago(20)


def test_silence_of_those_who_can_not_be_heard_is_none():
    asleep = on(Rung.LEVEL1, idle_s=9000)
    assert decide(evidence(ladder=asleep, activity=None)) == Decision(asleep)
    assert decide(evidence(activity=None)) == Decision()
    assert decide(evidence(activity=quiet(9000, running=1))) == Decision(None, NOW + timedelta(seconds=600))


def test_a_wake_asks_for_one_replica_first_and_for_more_as_the_load_does():
    sleeping = evidence(ladder=on(Rung.LEVEL1, idle_s=600), wake_intent="x", replicas=4)
    woken = decide(sleeping)
    assert (woken.ladder.awake, woken.ladder.present, woken.ladder.reason) == (1, None, "request")
    assert woken.num_present(4) == 4
    more = replace(sleeping, ladder=woken.ladder, measures=TEN, activity=quiet(in_flight=25))
    followed = decide(more).ladder
    assert (followed.awake, followed.reason, followed.since) == (3, "load", woken.ladder.since)
    assert decide(replace(more, activity=quiet(in_flight=40))).ladder.awake is None
    assert decide(replace(more, ladder=followed, activity=quiet(in_flight=1))).ladder == followed


def test_while_replicas_sleep_the_load_is_looked_at_every_few_seconds_if_it_is_known():
    woken = Ladder(rung=Rung.ACTIVE, since=ago(400), reason="request", awake=2)
    partial = evidence(ladder=woken, replicas=4, serving_since=ago(300), activity=quiet(10))
    assert decide(partial).due == NOW + timedelta(seconds=5)
    assert decide(replace(partial, activity=None)).due is None
    assert decide(
        replace(partial, serving_since=ago(599), activity=quiet(10**6), ladder=replace(woken, since=ago(599)))
    ).due == (NOW + timedelta(seconds=1))
    assert decide(replace(partial, replicas=2)).ladder == replace(woken, awake=None), "fewer are wanted by the spec"


def test_from_zero_as_many_have_a_pod_as_are_awake_or_still_there():
    empty = evidence(ladder=on(Rung.ZERO, idle_s=7200), wake_intent="x", replicas=4)
    assert decide(replace(empty, wake_intent="")).num_present(4) == 0
    woken = decide(empty)
    assert (woken.ladder.awake, woken.ladder.present, woken.num_present(4), woken.num_present(0)) == (1, 1, 1, 0)
    assert decide(replace(empty, num_places=3)).ladder.present == 3
    assert decide(replace(empty, num_places=4)).ladder.present is None
    more = decide(replace(empty, ladder=woken.ladder, measures=TEN, activity=quiet(in_flight=25))).ladder
    assert (more.awake, more.present) == (3, 3)
    silent = decide(replace(empty, ladder=more, wake_intent="", activity=quiet(700))).ladder
    assert silent.rung is Rung.ACTIVE, "it is awake for less than a minute"
    asleep = decide(replace(empty, ladder=replace(more, since=ago(601)), wake_intent="", activity=quiet(601))).ladder
    assert (asleep.rung, asleep.awake, asleep.present) == (Rung.LEVEL1, None, 3)
    again = decide(replace(empty, ladder=asleep, wake_intent="y", activity=None)).ladder
    assert (again.awake, again.present) == (1, 3)
    deep = decide(replace(empty, ladder=replace(asleep, idle_since=ago(7200)), wake_intent="")).ladder
    assert (deep.rung, deep.present) == (Rung.ZERO, None)


def test_rungs_that_workers_do_not_claim_are_passed_over():
    unable = evidence(unclaimed=frozenset({Rung.LEVEL1}), activity=quiet(700))
    assert decide(unable) == Decision(None, NOW + timedelta(seconds=1100))
    assert decide(replace(unable, activity=quiet(1800))).rung is Rung.LEVEL2
    assert decide(replace(unable, ladder=on(Rung.LEVEL1, idle_s=700))).rung is Rung.ACTIVE, "nobody had been heard"
    both = replace(unable, unclaimed=frozenset({Rung.LEVEL1, Rung.LEVEL2}))
    assert decide(replace(both, ladder=on(Rung.LEVEL2, idle_s=1900), activity=quiet(1900))).rung is Rung.ACTIVE
    only_first = replace(LIFECYCLE, level2_after_s=None, zero_after_s=None)
    assert decide(replace(both, lifecycle=only_first)) == Decision()


def test_who_has_to_leave_memory_to_others_goes_to_the_next_rung_that_is_claimed_or_stays():
    leaves = evidence(turn=Turn(yields_for="other"), activity=quiet(70))
    deep = frozenset({Rung.LEVEL2, Rung.LEVEL3})
    assert decide(leaves).rung is Rung.LEVEL1
    assert decide(replace(leaves, unclaimed=frozenset({Rung.LEVEL1}))).rung is Rung.LEVEL2
    assert decide(replace(leaves, unclaimed=deep | {Rung.LEVEL1})).rung is Rung.ACTIVE
    pressed = evidence(ladder=on(Rung.LEVEL1, idle_s=700), activity=quiet(700), pressed_to=2)
    assert decide(replace(pressed, unclaimed=frozenset({Rung.LEVEL2}))).rung is Rung.LEVEL3
    assert decide(replace(pressed, unclaimed=deep)).rung is Rung.LEVEL1


def test_who_cannot_leave_for_a_neighbour_yet_is_looked_at_again_soon():
    leaves = evidence(turn=Turn(yields_for="other"), activity=quiet(70))
    soon = Decision(None, NOW + timedelta(seconds=1))
    assert decide(replace(leaves, activity=quiet(in_flight=1))) == soon, "nobody tells of the end of a last request"
    assert decide(replace(leaves, is_stirred=True)) == soon
    assert decide(replace(leaves, activity=None)) == soon
    assert decide(replace(leaves, serving_since=None)) == soon
    assert decide(replace(leaves, is_stirred=True, turn=None)).due == NOW + timedelta(seconds=600)
    unable = replace(leaves, unclaimed=frozenset({Rung.LEVEL1, Rung.LEVEL2, Rung.LEVEL3}))
    assert decide(replace(unable, activity=quiet(7200))).rung is Rung.ZERO


def test_pods_of_this_object_that_are_there_count_up_to_the_highest_place():
    deployment = a_deployment(replicas=4)
    pods = [a_pod(0, is_deleting=True), a_pod(1), a_pod(2, has_ended=True), a_pod(3, owner_uid="other")]
    assert gather(deployment, None, NOW, pods=pods).num_places == 2
    assert gather(deployment, None, NOW).num_places == 0


def test_a_copy_that_has_to_go_is_a_step_to_level_2_unless_somebody_calls():
    pressed = evidence(ladder=on(Rung.LEVEL1, idle_s=700), activity=None, pressed_to=2)
    ladder = decide(pressed).ladder
    assert (ladder.rung, ladder.reason, ladder.since, ladder.idle_since) == (Rung.LEVEL2, "pressure", NOW, ago(700))
    assert decide(replace(pressed, ladder=ladder)).ladder == ladder
    assert decide(replace(pressed, activity=quiet(700))).due == NOW + timedelta(seconds=6500)
    assert decide(replace(pressed, wake_intent="x")).rung is Rung.ACTIVE
    assert decide(replace(pressed, ladder=on(Rung.ZERO, idle_s=9000))).rung is Rung.ZERO
    assert decide(replace(pressed, pressed_to=3)).rung is Rung.LEVEL3
    assert decide(replace(pressed, ladder=ladder, pressed_to=3)).ladder.reason == "pressure"
