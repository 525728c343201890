"""Which pods sleep on while others serve: as many as are wanted awake come, whoever refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.decide.spare_replicas import choose
from dormouse_operator.model import AT_REST, AWAKE, Ladder, Rung, WorkerState
from dormouse_operator.testing.nouns import NOW, a_pod, a_worker

STANDBY = WorkerState.STANDBY
READY, ASLEEP, WAKING, LOADING = WorkerState.READY, WorkerState.ASLEEP, WorkerState.WAKING, WorkerState.LOADING
LADDER = Ladder(rung=Rung.ACTIVE, since=NOW, reason="request", awake=1)


def spares(*states, ladder=LADDER, refused=(), **fields):
    """Return the places of the pods that sleep on."""
    pods = [a_pod(place, **fields) for place in range(len(states))]
    workers = {pod.name: a_worker(state) for pod, state in zip(pods, states, strict=True) if state}
    chosen = choose(ladder, pods, workers, {pods[place].name for place in refused})
    return [pod.index for pod in pods if pod.name in chosen]


@pytest.mark.parametrize(
    "ladder",
    [None, replace(LADDER, awake=None), replace(LADDER, rung=Rung.LEVEL1)],
    ids=["never slept", "all", "asleep"],
)
def test_nobody_is_spare_unless_a_part_is_to_be_awake(ladder):
    assert spares(READY, ASLEEP, ladder=ladder) == []


def test_the_first_in_place_wakes_and_the_others_sleep_on():
    assert spares(ASLEEP, ASLEEP, ASLEEP) == [1, 2]
    assert spares(ASLEEP, ASLEEP, ASLEEP, ladder=replace(LADDER, awake=2)) == [2]


@pytest.mark.parametrize("state", [READY, WorkerState.DRAINING, WAKING, WorkerState.INITIALIZING])
def test_who_is_awake_or_comes_goes_before_who_sleeps(state):
    assert spares(ASLEEP, state, ASLEEP) == [0, 2]


def test_who_sleeps_is_woken_before_who_stands_by_and_an_engine_that_starts_is_enough():
    assert spares(STANDBY, ASLEEP, STANDBY) == [0, 2]
    assert spares(STANDBY, STANDBY) == [1]
    assert spares(LOADING, STANDBY, STANDBY) == [1, 2]
    assert spares(LOADING, STANDBY, STANDBY, ladder=replace(LADDER, awake=2)) == [2]
    assert spares(LOADING, ASLEEP, STANDBY) == [2], "who sleeps is there sooner than an engine that starts"
    assert spares(STANDBY, STANDBY, refused=[0]) == []


@pytest.mark.parametrize("state", [None, LOADING, WorkerState.FAILED, WorkerState.STARTING])
def test_who_will_take_long_or_never_comes_counts_for_nothing(state):
    assert spares(state, ASLEEP, ASLEEP) == [2]


@pytest.mark.parametrize("reason", ["Leaving", "Swapping"])
def test_who_is_on_its_way_out_counts_for_nothing(reason):
    assert spares(READY, ASLEEP, ASLEEP, gate_open=False, gate_reason=reason) == [2]
    assert spares(READY, ASLEEP, is_deleting=True) == []


def test_who_refuses_is_asked_again_beside_the_next_one_and_left_alone_once_another_is_awake():
    assert spares(ASLEEP, ASLEEP, ASLEEP, refused=[0]) == [2]
    assert spares(ASLEEP, ASLEEP, ASLEEP, refused=[0, 1, 2]) == []
    assert spares(ASLEEP, READY, ASLEEP, refused=[0]) == [0, 2]


@given(
    st.lists(st.sampled_from([None, *WorkerState]), max_size=6),
    st.integers(1, 6),
    st.sets(st.integers(0, 5)),
)
def test_as_many_come_as_are_wanted_if_so_many_can(states, wanted, refused):
    refused = {place for place in refused if place < len(states)}
    sleeping_on = spares(*states, ladder=replace(LADDER, awake=wanted), refused=refused)
    assert all(states[place] in AT_REST for place in sleeping_on)
    others = [place for place in range(len(states)) if place not in sleeping_on]
    coming = {*AWAKE, WAKING, WorkerState.INITIALIZING}
    woken = [place for place in others if states[place] in coming or (states[place] is ASLEEP and place not in refused)]
    started = [place for place in others if states[place] in {LOADING, WorkerState.STARTING, WorkerState.PROFILED}]
    started += [place for place in others if states[place] is STANDBY and place not in refused]
    if any(states[place] is ASLEEP for place in sleeping_on):
        assert len(woken) >= wanted
    if any(states[place] is STANDBY for place in sleeping_on):
        assert len(woken) + len(started) >= wanted
