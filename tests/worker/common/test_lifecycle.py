"""The table of allowed transitions."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_worker.common.commands import Command
from dormouse_worker.common.ipc import State
from dormouse_worker.common.lifecycle import (
    ALLOWED_IN,
    RETRY_AFTER_S,
    TRANSITIONS,
    combine,
    describe,
    is_allowed,
    why_not,
)

THE_WAY = ["STARTING", "LOADING", "PROFILED", "INITIALIZING", "READY", "DRAINING", "ASLEEP", "WAKING", "READY"]


def test_every_state_stands_in_every_table():
    assert TRANSITIONS.keys() == RETRY_AFTER_S.keys() == set(State)


def test_every_command_stands_in_the_table_and_what_else_does_is_a_call_of_the_operator():
    commands = {command.__name__ for command in get_args(Command)}
    calls = {method.name for method in pb.DESCRIPTOR.services_by_name["WorkerControl"].methods}
    assert commands <= ALLOWED_IN.keys() <= commands | calls


@pytest.mark.parametrize(("call", "states"), ALLOWED_IN.items())
def test_what_a_draining_worker_may_do_its_engine_may_too(call, states):
    """The engine knows no DRAINING: it looks into the same table in READY."""
    assert State.DRAINING not in states or State.READY in states, call


def test_a_refusal_names_the_call_the_states_and_the_present_one():
    assert why_not("SaveShardedState", State.READY, 0) == ""
    refusal = "PrepareWakeUp needs the state ASLEEP or READY; the worker is loading"
    assert why_not("PrepareWakeUp", State.LOADING, 0) == refusal


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
