"""Another engine in the place of the one that serves, in the same pod: the old one sleeps until the new one can serve.

    close           nobody runs and nobody is let in
    sleep           the old engine gives its device's memory back, and stays
    start beside    the new one: a process and a socket of its own; loads and profiles, within a deadline
    good            the old one ends, the front follows the new one's settings: PROFILED, InitializeCache has to follow
    bad             the new one is killed, the old one wakes and serves as before; the call fails with the reason

Until it is decided nothing but the status tells of the new engine, and no other command is let through.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc

from dormouse_api.status import CallError
from dormouse_worker.common.commands import TAGS, Sleep, WakeUp
from dormouse_worker.common.errors import WorkerError
from dormouse_worker.common.ipc import State
from dormouse_worker.front.conduct.refusals import precondition, require
from dormouse_worker.front.conduct.sleep_conductor import SleepConductor
from dormouse_worker.front.engine.command_queue import CommandQueue
from dormouse_worker.front.engine.config import EngineConfig, ReadEdition, settings_of
from dormouse_worker.front.engine.newcomer import NewcomerEngine, Retired
from dormouse_worker.front.engine.status_board import Failure
from dormouse_worker.front.sides import SpawnFor
from dormouse_worker.front.worker import Worker

logger = logging.getLogger(__name__)

# The levels that give a device's memory back, the one to prefer first. A device with memory of its own leaves the
# weights on the host, if they fit there; where memory is one, only level 2 frees them.
LEVELS = {"cuda": (1, 2), "cpu": (2,)}


@dataclass(frozen=True, slots=True)
class SwapOrder:
    """What a swap was asked to do."""

    arguments: tuple[str, ...]  # the worker's whole command line
    digest: str  # "" = the settings' own
    timeout_s: float  # for the new engine to be profiled; 0 = its --engine-load-timeout


@dataclass(frozen=True, slots=True)
class Workshop:
    """What a new engine is made with."""

    spawn_for: SpawnFor
    read: ReadEdition
    socket_dir: Path


@dataclass(frozen=True, slots=True)
class Before:
    """What has to be as before if the new engine fails."""

    reopens: bool  # a worker that could not fall asleep
    awake: tuple[str, ...]  # tags


class EngineSwap:
    """Owns the swap under way, of which there is at most one, and its newcomer."""

    def __init__(self, worker: Worker, turns: CommandQueue, conductor: SleepConductor, workshop: Workshop) -> None:
        self._worker = worker
        self._turns = turns
        self._conductor = conductor
        self._workshop = workshop
        self._newcomer: NewcomerEngine | None = None
        self._running: asyncio.Task[None] | None = None
        self._numbers = itertools.count(2)  # the first engine has a socket without a number

    def __repr__(self) -> str:
        return f"EngineSwap({self._newcomer!r})"

    async def run(self, order: SwapOrder) -> None:
        """Serve with these settings. Raises CallError; then what served before serves again, as far as it could be."""
        front, engine = settings_of(order.arguments, order.digest, self._worker.settings)
        if await self._is_done(front.settings_digest):
            return
        edition = await asyncio.to_thread(self._workshop.read, front, engine)
        await asyncio.shield(self._begin(edition, order.timeout_s or front.engine_load_timeout_s))

    async def stop(self) -> None:
        """End the newcomer and wait for the swap's end; its caller is told. The worker is ending."""
        if self._running is not None:
            self._give_up("ShuttingDown", "the worker is shutting down")
            await asyncio.wait({self._running})

    async def _is_done(self, digest: str) -> bool:
        """Return whether this is served; waits for a swap to it, and takes back one away from it."""
        served = self._worker.served
        if self._running is not None and digest == self._worker.swapping_to:
            await asyncio.shield(self._running)
        elif self._running is not None and digest == served.edition.digest:
            self._give_up("Recalled", "the settings before were asked for again")
            await asyncio.wait({self._running})
        return digest == served.edition.digest

    def _give_up(self, reason: str, message: str) -> None:
        if self._newcomer is not None:
            self._newcomer.give_up(reason, message)

    def _begin(self, edition: EngineConfig, timeout_s: float) -> asyncio.Task[None]:
        """Check, close and start; nothing can come in between. Raises CallError with nothing done."""
        worker = self._worker
        self._turns.require_none("SwapEngine")
        before = self._close(edition)
        self._newcomer = NewcomerEngine(self._workshop.spawn_for(edition.engine), worker.clock)
        worker.begin_swap(edition.digest)
        swap = partial(self._swap, edition, self._newcomer, before, timeout_s=timeout_s)
        self._running = self._turns.start_alone(f"a swap to {edition.digest} is under way", swap)
        return self._running

    def _close(self, edition: EngineConfig) -> Before:
        worker = self._worker
        if isinstance(edition.model, WorkerError):
            raise _failed(Failure(edition.model.reason, str(edition.model)), "nothing was changed")
        if worker.is_ending:
            raise CallError(grpc.StatusCode.UNAVAILABLE, "the worker is shutting down")
        if worker.settings.device_grants:
            raise precondition("SwapEngine: a worker with --device-grants keeps its settings; a new pod has others")
        require(worker, "SwapEngine")
        if left := len(worker.requests):
            raise precondition(f"SwapEngine needs a worker on which nothing runs; {left} requests do: Drain first")
        asleep = worker.board.engine.sleeping_tags if worker.board.state is State.ASLEEP else ()
        return Before(self._conductor.take_over(), tuple(tag for tag in TAGS if tag not in asleep))

    async def _swap(self, edition: EngineConfig, newcomer: NewcomerEngine, before: Before, *, timeout_s: float) -> None:
        try:
            await self._put_to_sleep(before)
            failure = await self._start_beside(edition, newcomer, timeout_s)
            if failure is None:
                await self._adopt(edition, newcomer)
                return
            await newcomer.end()
            logger.error("swap failed", extra={"fields": {"reason": failure.reason, "message": failure.message}})
            raise _failed(failure, await self._return(before))
        finally:
            self._running = self._newcomer = None
            self._worker.end_swap()

    async def _put_to_sleep(self, before: Before) -> None:
        """Have the old engine give its device back. Raises CallError with everything as before."""
        worker = self._worker
        levels = LEVELS[worker.served.edition.engine.device]
        for level in sorted({max(level, worker.board.engine.sleep_level) for level in levels}):
            try:
                await worker.command(Sleep(level))
            except CallError as error:
                is_deeper_left = error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and level < levels[-1]
                if is_deeper_left:
                    continue
                if before.reopens:
                    worker.reopen()
                raise
            return

    async def _start_beside(self, edition: EngineConfig, newcomer: NewcomerEngine, timeout_s: float) -> Failure | None:
        """Return why the new engine cannot serve, None if it can."""
        path = self._workshop.socket_dir / f"engine-{next(self._numbers)}.sock"
        failure = await newcomer.start(path, timeout_s)
        if failure is not None:
            return failure
        assert not isinstance(edition.model, WorkerError), "checked before anything was done"
        try:
            await edition.model.take_tokenizer(newcomer.status)
        except WorkerError as error:
            return Failure(error.reason, str(error))
        return self._worker.board.failure  # of the device, say: that stays, whichever engine is there

    async def _return(self, before: Before) -> str:
        """Wake what was awake; return in words what became of the old engine."""
        worker = self._worker
        if worker.is_ending:
            return "nothing is woken any more"
        if not worker.link.is_connected:
            return "the engine before died meanwhile and is started again"
        try:
            if before.awake:
                await worker.command(WakeUp(before.awake))
        except CallError as error:
            return f"the engine before could not be woken: {error}"
        return f"the engine before is {worker.board.state.lower()} again"

    async def _adopt(self, edition: EngineConfig, newcomer: NewcomerEngine) -> None:
        """End the old engine, then follow the new one: until then it is nobody's, so that it cannot be disturbed."""
        old = self._worker.link
        old.events = Retired()
        await old.stop()
        self._worker.adopt(edition, newcomer.link, newcomer.status)
        newcomer.hand_over(self._worker)
        logger.info("engine swapped", extra={"fields": {"settings": edition.digest, "model": edition.engine.model}})


def _failed(failure: Failure, became: str) -> CallError:
    return precondition(f"SwapEngine: {failure.message} ({failure.reason}); {became}")
