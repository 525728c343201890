"""What an engine does may take as long as its kind of work takes, and no longer."""

from __future__ import annotations

import pytest

from dormouse_worker.common.commands import (
    CheckHealth,
    InitializeCache,
    ResetPrefixCache,
    Shutdown,
    Sleep,
    StartProfile,
    WakeUp,
)
from dormouse_worker.common.ipc import State
from dormouse_worker.common.lifecycle import STEPPING
from dormouse_worker.front.engine.watchdog import EngineLimits, RunningCommand, Watchdog, overdue

LIMITS = EngineLimits(silence_s=10, load_s=1000, command_s=100)
COMMANDS = (InitializeCache(1), Sleep(), ResetPrefixCache(), Shutdown(), StartProfile("/traces"))


def why(state, *, age_s=0.0, silence_s=0.0, command=None, seconds=0.0):
    running = RunningCommand(command, seconds) if command else None
    return overdue(Watchdog(state, age_s, silence_s, running), LIMITS)


@pytest.mark.parametrize("state", [State.STARTING, State.LOADING])
def test_a_start_may_take_the_load_timeout_and_is_silent_meanwhile(state):
    assert why(state, age_s=1000, silence_s=1000) == ""
    assert why(state, age_s=1000.1) == "it took longer to start than 1000 s (--engine-load-timeout)"


@pytest.mark.parametrize("state", sorted(STEPPING))
def test_a_loop_must_be_heard_of_within_the_silence_timeout(state):
    assert why(state, age_s=1e6, silence_s=10) == ""
    assert why(state, silence_s=10.1) == "it was silent for longer than 10 s (--engine-timeout)"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.method)
@pytest.mark.parametrize("state", sorted(set(State) - {State.STARTING}))
def test_a_command_may_take_the_command_timeout_in_whatever_state(state, command):
    assert why(state, age_s=1e6, silence_s=1e6, command=command, seconds=100) == ""
    late = why(state, command=command, seconds=100.1)
    assert late == f"{command.method} took longer than 100 s (--engine-command-timeout)"


def test_a_wake_up_reads_the_weights_and_may_take_as_long_as_a_start():
    assert why(State.WAKING, command=WakeUp(), seconds=1000) == ""
    late = why(State.WAKING, command=WakeUp(), seconds=1001)
    assert late == "wake_up took longer than 1000 s (--engine-load-timeout)"


def test_a_probe_hides_no_engine_that_is_stuck():
    late = why(State.READY, command=CheckHealth(), seconds=10.1)
    assert late == "check_health took longer than 10 s (--engine-timeout)"


def test_a_failed_worker_has_nothing_to_be_late_with():
    assert why(State.FAILED, age_s=1e6, silence_s=1e6) == ""
