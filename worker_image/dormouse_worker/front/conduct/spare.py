"""One engine process ahead of its use: it has imported what an engine imports, has no model and no device, and waits.

    none ──the worker is at rest──▶ waiting ──an engine is wanted──▶ that engine
                                       └────── it ends, or the settings change ──▶ none

Importing is most of what an engine of a small model does until it is ready. An engine that died, or that STANDBY
ended, comes back without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dormouse_worker.common.errors import WorkerError
from dormouse_worker.common.ipc import State
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.start import EngineStart
from dormouse_worker.front.sides import EngineProcess, Spawn, SpawnFor, SpawnWaiting, WaitingProcess
from dormouse_worker.front.worker import Worker

logger = logging.getLogger(__name__)

AT_REST = frozenset({State.READY, State.ASLEEP, State.STANDBY})  # nobody waits for an engine that starts
PAUSE_S = 60.0  # after one that ended by itself, as where memory is short


class SpareEngine:
    """Owns the spare, of which there is at most one."""

    def __init__(self, spawn_waiting: SpawnWaiting, *, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._spawn_waiting = spawn_waiting
        self._sleep = sleep
        self._spare: _Spare | None = None
        self._watching: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"SpareEngine({'waits' if self._spare else 'none'})"

    def spawning(self, spawn_for: SpawnFor) -> SpawnFor:
        """Return what starts engines from the spare where it fits, and as before where there is none that does."""

        def spawn_from_spare(settings: EngineSettings) -> Spawn:
            async def spawn(socket_path: Path) -> EngineProcess:
                process = self._take(settings)
                if process is None:
                    return await spawn_for(settings)(socket_path)
                logger.info("engine starts from the spare")
                process.begin(EngineStart(str(socket_path), settings))
                return process

            return spawn

        return spawn_from_spare

    async def keep(self, worker: Worker) -> None:
        """Have a spare whenever the worker is at rest, until cancelled; then there is none."""
        try:
            while True:
                await worker.changes.until(lambda: _is_at_rest(worker))
                if not await self._keep_one(worker.served.edition.engine):
                    await self._sleep(PAUSE_S)
        finally:
            self._discard()

    async def _keep_one(self, settings: EngineSettings) -> bool:
        """Start a spare and wait until there is none any more; return False if that came by itself."""
        try:
            process = await self._spawn_waiting(settings)
        except OSError as error:
            logger.warning("no spare engine", extra={"fields": {"because": str(error)}})
            return False
        self._spare = spare = _Spare(process, _imports(settings))
        watching = asyncio.create_task(self._watch(spare))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        await spare.is_gone.wait()
        return not spare.has_failed

    async def _watch(self, spare: _Spare) -> None:
        """Wait for the end of its process. If that is an engine by then, its link tells what became of it."""
        exit_code = await spare.process.wait()
        if self._spare is spare:
            fields = {"exit_code": exit_code, "last_words": spare.process.last_words()}
            logger.warning("spare engine ended", extra={"fields": fields})
            spare.has_failed = True
            self._let_go()

    def _take(self, settings: EngineSettings) -> WaitingProcess | None:
        """Return the spare, which is nobody's from now on; None where none is there for these settings."""
        spare = self._spare
        if spare is None or not spare.process.is_alive:
            return None
        if spare.imports != _imports(settings):
            self._discard()
            return None
        self._let_go()
        return spare.process

    def _discard(self) -> None:
        if self._spare is not None:
            self._spare.process.kill()
            self._let_go()

    def _let_go(self) -> None:
        assert self._spare is not None, "looked at before"
        self._spare.is_gone.set()
        self._spare = None


@dataclass(slots=True, eq=False)
class _Spare:
    """A process that waits."""

    process: WaitingProcess
    imports: EngineSettings  # for which
    is_gone: asyncio.Event = field(default_factory=asyncio.Event)
    has_failed: bool = False


def _is_at_rest(worker: Worker) -> bool:
    is_settled = worker.board.state in AT_REST and not worker.swapping_to and not worker.is_ending
    return (
        is_settled and not worker.losses.is_gpu_unhealthy and not isinstance(worker.served.edition.model, WorkerError)
    )


def _imports(settings: EngineSettings) -> EngineSettings:
    """Return the settings without what a grant changes and where images lie, which decides nothing that is imported."""
    return msgspec.structs.replace(settings, device_memory_budget_bytes=0, expected_device="", image_dir="")
