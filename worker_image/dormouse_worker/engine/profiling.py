"""The commands that start and stop a profile: which states allow them, what they carry."""

from __future__ import annotations

from collections.abc import Callable

from dormouse_worker.common.errors import InvalidArgument, WrongState
from dormouse_worker.common.ipc import Command, State
from dormouse_worker.engine.executor import Executor

STARTABLE = (State.PROFILED, State.READY)  # asleep there is nothing to record, and a sleep ends what runs


class ProfileCommands:
    """Two of the controller's commands. Whether a profile runs is the worker's to know."""

    def __init__(self, executor: Executor, state: Callable[[], State]) -> None:
        self._executor = executor
        self._state = state

    def start(self, command: Command) -> None:
        """Begin. Raises WrongState, InvalidArgument."""
        directory = command.args.get("directory")
        if not isinstance(directory, str) or not directory:
            raise InvalidArgument(f"directory is {directory!r}; {command.method} needs a path")
        if self._state() not in STARTABLE:
            raise WrongState(f"{command.method} needs {' or '.join(STARTABLE)}; the worker is {self._state()}")
        self._executor.start_profile(directory)

    def stop(self, command: Command) -> str:
        """End; return the path of the trace. Raises WrongState."""
        if self._state() in {State.STARTING, State.FAILED}:
            raise WrongState(f"{command.method} needs a worker that runs; it is {self._state()}")
        return self._executor.stop_profile()
