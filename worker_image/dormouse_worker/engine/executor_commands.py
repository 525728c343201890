"""Commands that are the executor's alone: they change nothing of what the engine knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dormouse_worker.common.commands import CheckHealth, Command, SaveShardedState, StartProfile, StopProfile
from dormouse_worker.engine.executor import Executor


def executor_handlers(executor: Executor) -> Mapping[type[Command], Callable[[Any], str | None]]:
    """Return who carries out which command."""
    return {
        SaveShardedState: lambda command: executor.save_sharded_state(command.directory),
        StartProfile: lambda command: executor.start_profile(command.directory),
        StopProfile: lambda _: executor.stop_profile(),
        CheckHealth: lambda _: executor.check_health(),
    }
