"""The two commands of a profile: their argument, the states that allow them, what they answer."""

import pytest

from dormouse_worker.common.errors import InvalidArgument, WrongState
from dormouse_worker.common.ipc import Command, State
from dormouse_worker.engine.profiling import ProfileCommands
from dormouse_worker.engine.testing import FakeExecutor


@pytest.fixture
def executor():
    return FakeExecutor()


def commands(executor, state=State.READY):
    return ProfileCommands(executor, lambda: state)


@pytest.mark.parametrize("state", [State.PROFILED, State.READY])
def test_a_profile_starts_where_it_is_told(executor, state):
    commands(executor, state).start(Command(1, "start_profile", {"directory": "/traces/a"}))
    assert executor.calls == ["start_profile /traces/a"]


@pytest.mark.parametrize("args", [{}, {"directory": ""}, {"directory": 3}])
def test_a_start_without_a_directory_is_refused(executor, args):
    with pytest.raises(InvalidArgument, match=r"directory is .*; start_profile needs a path"):
        commands(executor).start(Command(1, "start_profile", args))


@pytest.mark.parametrize("state", [State.ASLEEP, State.FAILED])
def test_a_worker_that_computes_nothing_is_not_profiled(executor, state):
    with pytest.raises(WrongState, match=f"start_profile needs PROFILED or READY; the worker is {state}"):
        commands(executor, state).start(Command(1, "start_profile", {"directory": "/traces"}))
    assert executor.calls == []


def test_a_stop_returns_the_path(executor):
    assert commands(executor).stop(Command(1, "stop_profile")) == "/traces/rank0"


def test_a_failed_worker_has_nothing_to_stop(executor):
    with pytest.raises(WrongState, match="stop_profile needs a worker that runs; it is FAILED"):
        commands(executor, State.FAILED).stop(Command(1, "stop_profile"))
