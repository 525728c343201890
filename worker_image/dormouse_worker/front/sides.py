"""The two sides of the link to an engine: the process, as who starts it hands it over, and who hears what it says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from dormouse_worker.common.ipc import EngineStatus, StepOutputs
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.start import EngineStart


class EngineProcess(Protocol):
    """A started engine."""

    async def wait(self) -> int:
        """Return the exit code when it has ended; negative = the signal."""

    def kill(self) -> None:
        """End it now; nothing happens if it has ended."""

    def last_words(self) -> str:
        """Return the last line that it wrote to standard error."""


class WaitingProcess(EngineProcess, Protocol):
    """An engine that was started ahead of its use, and waits."""

    @property
    def is_alive(self) -> bool:
        """Return whether it has not ended, as far as is known."""

    def begin(self, start: EngineStart) -> None:
        """Have it serve. Once."""


class EngineEvents(Protocol):
    """Who wants to know what the engine says. Called in the event loop; must not block."""

    def on_status(self, status: EngineStatus) -> None:
        """The engine's state changed."""

    def on_outputs(self, outputs: StepOutputs) -> None:
        """A step produced tokens."""

    def on_lost(self) -> None:
        """The connection broke; nothing more will come. Comes before `on_death`."""

    def on_death(self, exit_code: int, last_words: str) -> None:
        """The process ended though nobody asked it to."""


Spawn = Callable[[Path], Awaitable[EngineProcess]]
SpawnFor = Callable[[EngineSettings], Spawn]  # what starts an engine with these settings
SpawnWaiting = Callable[[EngineSettings], Awaitable[WaitingProcess]]  # what starts one ahead, for these settings
