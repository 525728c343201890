"""How many replicas a load asks for: single decisions, properties, and traces played to the end in virtual time."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.decide.scaling import DEFAULTS, Asked, Behaviour, asked_for, decide
from dormouse_operator.model import Activity, Scaling

TRACES = json.loads((Path(__file__).parents[1] / "traces" / "outstanding.json").read_text())
PERIOD_S = 15.0
HASTY = Behaviour(down_window_s=0.0)
BY_REQUESTS = Scaling(min_replicas=1, max_replicas=10, target_outstanding=10)
BY_USAGE = Scaling(min_replicas=1, max_replicas=10, target_kv_usage=0.5)


def load(outstanding=0, *, usage=0.0, awake=1):
    return Activity(
        in_flight=outstanding,
        held=0,
        quiet_s=0.0,
        awake_workers=awake,
        running=0,
        waiting=0,
        mean_kv_cache_usage=usage,
    )


def replicas_for(scaling, replicas, activity, behaviour=HASTY):
    return decide(0.0, scaling, replicas, activity, (), behaviour).replicas


def play(scaling, trace, *, start=1, behaviour=DEFAULTS, startup_s=60.0):
    """Return the replicas after each sample of a trace of outstanding requests; new ones serve after a minute."""
    replicas, history, counts, ready_at = start, (), [], []
    for step, outstanding in enumerate(trace):
        now_s = step * PERIOD_S
        awake = replicas - sum(at_s > now_s for at_s in ready_at)
        decision = decide(now_s, scaling, replicas, _sample(outstanding, awake), history, behaviour)
        ready_at += [now_s + startup_s] * max(0, decision.replicas - replicas)
        replicas, history = decision.replicas, decision.history
        assert len(history) <= behaviour.down_window_s / PERIOD_S + 2, "what is remembered is bounded"
        counts.append(replicas)
    return counts


def _sample(outstanding, awake):
    """Return the load of so many requests (None = not known), of which each takes a twentieth of a worker's cache."""
    if outstanding is None:
        return None
    return load(outstanding, usage=min(1.0, outstanding / (20 * max(1, awake))), awake=awake)


def turns(counts):
    """Return how often the direction of change turned."""
    steps = [after - before for before, after in pairwise(counts) if after != before]
    return sum((one > 0) != (two > 0) for one, two in pairwise(steps))


# --- one decision ---


@pytest.mark.parametrize(
    ("replicas", "outstanding", "wanted"),
    [
        (1, 0, 1),
        (1, 10, 1),
        (1, 11, 1),  # a tenth above is near enough
        (1, 12, 2),
        (2, 18, 2),  # a tenth below, too
        (2, 17, 2),
        (3, 12, 2),
        (3, 10, 1),
        (5, 0, 1),
    ],
)
def test_requests_ask_for_as_many_replicas_as_have_their_share_each(replicas, outstanding, wanted):
    assert replicas_for(BY_REQUESTS, replicas, load(outstanding)) == wanted


@pytest.mark.parametrize(
    ("replicas", "awake", "usage", "wanted"),
    [
        (2, 2, 0.5, 2),
        (2, 2, 0.54, 2),
        (2, 2, 0.6, 3),
        (2, 2, 1.0, 4),
        (4, 4, 0.2, 2),
        (4, 2, 0.8, 4),  # two are loading: they will take their share
        (4, 2, 1.0, 4),
        (2, 1, 0.1, 2),  # the other one may be full
        (4, 2, 0.1, 3),
        (3, 0, 0.0, 3),  # nobody serves: nothing is known
        (1, 3, 0.5, 1),  # two of them are on their way out
    ],
)
def test_cache_use_asks_for_replicas_and_those_that_do_not_serve_yet_hold_it_back(replicas, awake, usage, wanted):
    assert replicas_for(BY_USAGE, replicas, load(usage=usage, awake=awake)) == wanted


def test_the_measure_that_asks_for_more_decides():
    both = Scaling(max_replicas=10, target_outstanding=10, target_kv_usage=0.5)
    assert replicas_for(both, 2, load(30, usage=0.5, awake=2)) == 3
    assert replicas_for(both, 2, load(1, usage=1.0, awake=2)) == 4


def test_without_a_measure_what_there_is_stays():
    assert replicas_for(Scaling(max_replicas=10), 4, load(1000)) == 4


def test_requests_that_reach_workers_past_the_gateway_count():
    direct = Activity(
        in_flight=5, held=0, quiet_s=0.0, awake_workers=1, running=20, waiting=15, mean_kv_cache_usage=0.0
    )
    assert replicas_for(BY_REQUESTS, 1, direct) == 4


@pytest.mark.parametrize("activity", [None, load(1000)])
@pytest.mark.parametrize(("replicas", "wanted"), [(1, 2), (9, 4)])
def test_bounds_are_kept_at_once_whatever_the_load_is(activity, replicas, wanted):
    decision = decide(0.0, Scaling(min_replicas=2, max_replicas=4, target_outstanding=1), replicas, activity, ())
    assert decision.replicas == wanted
    assert decision.reason == f"{replicas} replicas are outside of 2 to 4"
    assert decision.history == ()


def test_a_load_that_is_not_known_changes_nothing_and_holds_a_later_decrease_back():
    history = (Asked(-300.0, 1), Asked(-15.0, 1))
    for step in range(40):
        decision = decide(step * PERIOD_S, BY_REQUESTS, 5, None, history)
        assert (decision.replicas, decision.reason) == (5, "the load is not known")
        history = decision.history
    assert decide(600.0, BY_REQUESTS, 5, load(0), history).replicas == 5
    assert decide(600.0 + 301.0, BY_REQUESTS, 5, load(0), (*history, Asked(600.0, 1))).replicas == 1


def test_a_new_process_takes_nothing_away_for_the_length_of_the_window():
    counts = play(BY_REQUESTS, [0] * 30, start=8)
    assert counts[:20] == [8] * 20
    assert counts[20:] == [1] * 10


def test_replicas_at_most_double_at_once_but_four_may_always_come():
    assert play(BY_REQUESTS, [1000] * 3) == [5, 10, 10]
    assert play(Scaling(max_replicas=100, target_outstanding=10), [1000] * 5) == [5, 10, 20, 40, 80]


def test_what_was_asked_for_counts_for_the_length_of_the_window_and_is_forgotten_then():
    asked = (Asked(0.0, 5),)
    within = decide(299.0, BY_REQUESTS, 5, load(1), asked)
    assert (within.replicas, within.history) == (5, (*asked, Asked(299.0, 1)))
    over = decide(300.0, BY_REQUESTS, 5, load(1), asked)
    assert (over.replicas, over.history) == (1, (Asked(300.0, 1),))
    longer = Behaviour(up_window_s=600.0, down_window_s=300.0)
    kept = decide(300.0, BY_REQUESTS, 5, load(1), asked, longer)
    assert (kept.replicas, kept.history) == (1, (*asked, Asked(300.0, 1))), "one window still needs it, the other not"


def test_with_a_window_upwards_a_short_burst_adds_nothing():
    patient = Behaviour(up_window_s=60.0)
    assert set(play(BY_REQUESTS, [5] * 8 + [90] * 3 + [5] * 8, behaviour=patient)) == {1}
    assert max(play(BY_REQUESTS, [5] * 8 + [90] * 8, behaviour=patient)) == 9


def test_the_reason_holds_the_numbers():
    both = Scaling(max_replicas=10, target_outstanding=10, target_kv_usage=0.5)
    assert decide(0.0, both, 2, load(30, usage=0.25, awake=2), ()).reason == (
        "30 unfinished requests, 10 per replica wanted; 25% of the KV cache of 2 workers in use, 50% wanted"
    )


# --- properties ---

LOADS = st.builds(
    lambda outstanding, usage, awake: load(outstanding, usage=usage, awake=awake),
    st.integers(0, 10_000),
    st.floats(0, 1),
    st.integers(0, 40),
)
SCALINGS = st.builds(
    lambda least, more, outstanding, usage: Scaling(
        min_replicas=least, max_replicas=least + more, target_outstanding=outstanding, target_kv_usage=usage
    ),
    st.integers(1, 20),
    st.integers(0, 20),
    st.none() | st.integers(1, 100),
    st.none() | st.floats(0.01, 1),
)
HISTORIES = st.lists(st.tuples(st.floats(0, 1000), st.integers(1, 50)), max_size=20).map(
    lambda pairs: tuple(Asked(at_s, count) for at_s, count in sorted(pairs))
)


@given(SCALINGS, st.integers(1, 60), st.none() | LOADS, HISTORIES)
def test_bounds_are_never_left(scaling, replicas, activity, history):
    decision = decide(1000.0, scaling, replicas, activity, history)
    assert scaling.min_replicas <= decision.replicas <= scaling.max_replicas


@given(SCALINGS, st.integers(1, 60), LOADS, st.integers(0, 1000), st.floats(0, 1), HISTORIES)
def test_more_load_never_brings_fewer_replicas(scaling, replicas, activity, more, fuller, history):
    usage = max(activity.mean_kv_cache_usage, fuller)
    heavier = load(activity.in_flight + more, usage=usage, awake=activity.awake_workers)
    lighter_wants = decide(1000.0, scaling, replicas, activity, history).replicas
    assert decide(1000.0, scaling, replicas, heavier, history).replicas >= lighter_wants


@given(SCALINGS, st.integers(1, 60), LOADS)
def test_what_was_asked_for_satisfies_the_same_load_once_it_is_there(scaling, replicas, activity):
    """Without the tolerance, which keeps what is nearly right: the answer to the same total is the same again."""
    wanted = asked_for(scaling, replicas, activity, 0.0)
    if scaling.target_kv_usage is None and scaling.target_outstanding is not None and wanted:
        assert asked_for(scaling, wanted, activity, 0.0) == wanted


# --- traces ---


@pytest.mark.parametrize("name", sorted(TRACES))
@pytest.mark.parametrize(
    "scaling", [BY_REQUESTS, BY_USAGE, Scaling(max_replicas=10, target_outstanding=10, target_kv_usage=0.5)]
)
def test_every_trace_stays_within_the_bounds_and_comes_back_to_the_least(name, scaling):
    counts = play(scaling, TRACES[name] + [0] * 40)
    assert all(1 <= count <= 10 for count in counts)
    assert counts[-1] == 1


def test_a_burst_is_answered_at_once_and_given_up_after_the_window():
    trace = TRACES["burst"]
    counts = play(BY_REQUESTS, trace)
    start = next(step for step, outstanding in enumerate(trace) if outstanding > 50)
    end = max(step for step, outstanding in enumerate(trace) if outstanding > 50)
    assert counts[start] > counts[start - 1]
    assert max(counts[start : start + 3]) >= 8
    assert min(counts[start + 3 : end + 20]) == max(counts), "nothing is taken away within five minutes after it"
    assert counts[-1] == 1
    assert turns(counts) == 1


def test_a_ramp_is_followed_upwards_without_a_step_back():
    counts = play(BY_REQUESTS, TRACES["ramp"])
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 10)


def test_a_load_that_flaps_within_the_window_changes_nothing_after_the_first_rise():
    counts = play(BY_REQUESTS, TRACES["flapping"])
    peak = counts.index(max(counts))
    assert set(counts[peak:]) == {max(counts)}
    hasty = play(BY_REQUESTS, TRACES["flapping"], behaviour=HASTY)
    assert turns(hasty) > 10, "the window is what holds it"


def test_a_model_that_nobody_asks_stays_at_the_least():
    assert set(play(BY_REQUESTS, TRACES["idle"])) == {1}


def test_a_noisy_day_turns_rarely():
    """A load that rises through the day and falls at night, with noise and with gaps in what is known."""
    rng = random.Random(4)
    day = [max(0, round(40 + 35 * (step % 480 - 240) / 240 + rng.gauss(0, 6))) for step in range(1920)]
    trace = [None if rng.random() < 0.01 else outstanding for outstanding in day]
    assert turns(play(BY_REQUESTS, trace)) <= 40  # four days
    assert turns(play(BY_REQUESTS, trace, behaviour=HASTY)) > 200
