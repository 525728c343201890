"""Keeps the engine running: ends one that takes too long, starts a new one after a death, and gives up at the limit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from dormouse_worker.front.engine.restarts import RestartBudget, RestartLimits
from dormouse_worker.front.worker import Worker

logger = logging.getLogger(__name__)

WATCH_PERIOD_S = 0.5  # between two looks at what the engine does


class EngineKeeper:
    """Owns the two tasks that look after the engine. What the engine says goes to the worker, not through here."""

    def __init__(
        self,
        worker: Worker,
        socket_path: Path,
        limits: RestartLimits,
        *,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._worker = worker
        self._socket_path = socket_path
        self._limits = limits
        self._budget = RestartBudget(limits, worker.clock)
        self._sleep = sleep
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    def __repr__(self) -> str:
        return f"EngineKeeper({self._budget!r})"

    async def start(self) -> None:
        """Start the engine, unless none is wanted, and look after it. Raises OSError if the first cannot be started."""
        if self._worker.wants_engine:
            await self._worker.link.start(self._socket_path)
        self._tasks = asyncio.create_task(self._keep()), asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Restart nothing from now on; the engine itself is ended by its link. Safe when it was never started."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self) -> None:
        worker = self._worker
        while True:
            if not worker.wants_engine:
                await self._begin_when_wanted()
            link = worker.link
            await link.until_ended()
            await worker.changes.until(lambda: not worker.swapping_to)  # else the old model would load beside the new
            if worker.link is not link or not worker.wants_engine:
                continue
            if worker.is_ending or worker.losses.is_gpu_unhealthy:
                return
            if not worker.grants.starts_again(worker.died_in):
                logger.warning("engine is not restarted", extra={"fields": {"because": worker.losses.words}})
                worker.stand_by(0.0)
                continue
            delay_s = self._budget.take()
            if delay_s is None:
                worker.give_up(str(self._limits))
                return
            logger.warning("engine restarts", extra={"fields": {"delay_s": delay_s, "because": worker.losses.words}})
            await self._sleep(delay_s)
            if worker.wants_engine:
                worker.metrics.on_engine_restart()
                await self._begin()

    async def _begin_when_wanted(self) -> None:
        is_begun = False
        while not is_begun:
            await self._worker.changes.until(lambda: self._worker.wants_engine)
            is_begun = await self._begin()

    async def _begin(self) -> bool:
        """Start an engine, unless none is wanted by now; return whether it was. An OSError counts as one more death."""
        worker = self._worker
        try:
            # shielded: a process that was half started when we are cancelled must be known to the link, which ends it
            return await asyncio.shield(worker.link.start(self._socket_path, lambda: worker.wants_engine))
        except OSError as error:
            worker.losses.note(f"the engine process cannot be started: {error}")
            return True

    async def _watch(self) -> None:
        """End an engine found late at two looks in a row: once may be a front that was held up itself."""
        was_late = False
        while True:
            await self._sleep(WATCH_PERIOD_S)
            why = self._worker.engine_overdue
            if was_late and why:
                logger.error("engine is killed", extra={"fields": {"because": why}})
                self._worker.link.kill(why)
            was_late = bool(why)
