"""An engine that starts beside the one that serves: what it says, and how its start ends. Serves nobody yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from dormouse_worker.common.ipc import EngineStatus, State, StepOutputs
from dormouse_worker.front.engine.link import EngineLink
from dormouse_worker.front.engine.status_board import Failure
from dormouse_worker.front.sides import EngineEvents, Spawn


class NewcomerEngine:
    """Implements `EngineEvents` until it is handed over. Owns the new engine's link and what became of its start."""

    def __init__(self, spawn: Spawn, clock: Callable[[], float]) -> None:
        self.link = EngineLink(spawn, self, clock)
        self.status = EngineStatus(state=State.STARTING)
        self._outcome: asyncio.Future[Failure | None] = asyncio.get_running_loop().create_future()
        self._was_lost = False
        self._death: tuple[int, str] | None = None  # exit code and last words

    def __repr__(self) -> str:
        return f"NewcomerEngine({self.status.state}, {self.link!r})"

    async def start(self, socket_path: Path, timeout_s: float) -> Failure | None:
        """Start it and wait until it is PROFILED; return why it will not be, else None. Raises nothing."""
        if self._outcome.done():
            return self._outcome.result()
        try:
            async with asyncio.timeout(timeout_s):
                # shielded: a process that was half started must be known to the link, which ends it
                await asyncio.shield(self.link.start(socket_path))
                return await asyncio.shield(self._outcome)
        except TimeoutError:
            words = f"the new engine is still {self.status.state.lower()} after {timeout_s:g} s (timeout_seconds)"
            return Failure("ProgressDeadlineExceeded", words)
        except OSError as error:
            return Failure("EngineDied", f"the engine process cannot be started: {error}")

    def give_up(self, reason: str, message: str) -> None:
        """End the waiting; nothing happens if its start has ended already."""
        self._settle(Failure(reason, message))

    async def end(self) -> None:
        """End the process at once: it holds nothing that anybody needs. Safe when it never started."""
        self.link.kill("it is not wanted any more")
        await self.link.stop()

    def hand_over(self, events: EngineEvents) -> None:
        """From now on somebody else hears what the engine says, and what it died of meanwhile."""
        self.link.events = events
        if self._was_lost:
            events.on_lost()
        if self._death is not None:
            events.on_death(*self._death)

    def on_status(self, status: EngineStatus) -> None:
        """See `EngineEvents`."""
        self.status = status
        if status.state is State.PROFILED:
            self._settle(None)
        elif status.state is State.FAILED:
            self.give_up(status.failure_reason, status.failure_message)

    def on_outputs(self, outputs: StepOutputs) -> None:
        """See `EngineEvents`. Nobody asked it anything."""

    def on_lost(self) -> None:
        """See `EngineEvents`. Its death follows, and has words."""
        self._was_lost = True

    def on_death(self, exit_code: int, last_words: str) -> None:
        """See `EngineEvents`."""
        self._death = exit_code, last_words
        end = f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
        self.give_up("EngineDied", f"the new engine's process {end}; its last words: {last_words or 'none'}")

    def _settle(self, failure: Failure | None) -> None:
        if not self._outcome.done():
            self._outcome.set_result(failure)


class Retired:
    """Implements `EngineEvents` for an engine that is being ended: nobody cares any more."""

    def on_status(self, status: EngineStatus) -> None:
        """See `EngineEvents`."""

    def on_outputs(self, outputs: StepOutputs) -> None:
        """See `EngineEvents`."""

    def on_lost(self) -> None:
        """See `EngineEvents`."""

    def on_death(self, exit_code: int, last_words: str) -> None:
        """See `EngineEvents`."""
