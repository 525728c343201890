"""What an engine does may take as long as its kind of work takes, and no longer."""

from __future__ import annotations

import pytest

from dormouse_worker.common.ipc import State
from dormouse_worker.common.lifecycle import STEPPING
from dormouse_worker.front.engine.watchdog import EngineLimits, RunningCommand, Watchdog, overdue

LIMITS = EngineLimits(silence_s=10, load_s=1000, command_s=100)
COMMANDS = ("initialize_cache", "sleep", "reset_prefix_cache", "shutdown", "start_profile")


def why(state, *, age_s=0.0, silence_s=0.0, method="", seconds=0.0):
    command = RunningCommand(method, seconds) if method else None
    return overdue(Watchdog(state, age_s, silence_s, command), LIMITS)


@pytest.mark.parametrize("state", [State.STARTING, State.LOADING])
def test_a_start_may_take_the_load_timeout_and_is_silent_meanwhile(state):
    assert why(state, age_s=1000, silence_s=1000) == ""
    assert why(state, age_s=1000.1) == "it took longer to start than 1000 s (--engine-load-timeout)"


@pytest.mark.parametrize("state", sorted(STEPPING))
def test_a_loop_must_be_heard_of_within_the_silence_timeout(state):
    assert why(state, age_s=1e6, silence_s=10) == ""
    assert why(state, silence_s=10.1) == "it was silent for longer than 10 s (--engine-timeout)"


@pytest.mark.parametrize("method", COMMANDS)
@pytest.mark.parametrize("state", sorted(set(State) - {State.STARTING}))
def test_a_command_may_take_the_command_timeout_in_whatever_state(state, method):
    assert why(state, age_s=1e6, silence_s=1e6, method=method, seconds=100) == ""
    late = why(state, method=method, seconds=100.1)
    assert late == f"{method} took longer than 100 s (--engine-command-timeout)"


def test_a_wake_up_reads_the_weights_and_may_take_as_long_as_a_start():
    assert why(State.WAKING, method="wake_up", seconds=1000) == ""
    assert (
        why(State.WAKING, method="wake_up", seconds=1001) == "wake_up took longer than 1000 s (--engine-load-timeout)"
    )


def test_a_probe_hides_no_engine_that_is_stuck():
    late = why(State.READY, method="check_health", seconds=10.1)
    assert late == "check_health took longer than 10 s (--engine-timeout)"


def test_a_failed_worker_has_nothing_to_be_late_with():
    assert why(State.FAILED, age_s=1e6, silence_s=1e6) == ""
