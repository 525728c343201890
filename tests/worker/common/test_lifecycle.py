"""The table of allowed transitions."""

from __future__ import annotations

import itertools

import pytest

from dormouse_worker.common.ipc import State
from dormouse_worker.common.lifecycle import RETRY_AFTER_S, TRANSITIONS, combine, describe, is_allowed

THE_WAY = ["STARTING", "LOADING", "PROFILED", "INITIALIZING", "READY", "DRAINING", "ASLEEP", "WAKING", "READY"]


def test_every_state_stands_in_every_table():
    assert TRANSITIONS.keys() == RETRY_AFTER_S.keys() == set(State)


def test_the_ordinary_life_is_allowed():
    assert all(is_allowed(State(a), State(b)) for a, b in itertools.pairwise(THE_WAY))


@pytest.mark.parametrize("state", State)
def test_every_state_can_fail_and_failed_can_not_be_left(state):
    assert is_allowed(state, State.FAILED)
    assert is_allowed(State.FAILED, state) == (state is State.FAILED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LOADING", "READY"),  # nobody serves before the agreement
        ("PROFILED", "READY"),
        ("READY", "ASLEEP"),  # draining comes first
        ("ASLEEP", "READY"),  # waking, with its check of the golden tokens, comes first
        ("WAKING", "DRAINING"),
        ("READY", "LOADING"),
    ],
)
def test_shortcuts_are_not_allowed(old, new):
    assert not is_allowed(State(old), State(new))


@pytest.mark.parametrize("state", State)
def test_draining_shows_only_while_the_engine_is_ready(state):
    assert combine(state, draining=False) is state
    assert combine(state, draining=True) is (State.DRAINING if state is State.READY else state)


def test_the_words_for_a_caller_name_the_level_of_sleep():
    assert describe(State.ASLEEP, 2) == "asleep at level 2"
    assert describe(State.LOADING, 0) == "loading"
