"""STANDBY: the way into it, which ends the engine process in whatever state it is, and the way out.

    every state ──Sleep level 3: callers end, then the process──▶ STANDBY ──WakeUp──▶ STARTING, as after a crash

An engine that comes round is hung up on and gets some seconds to end by itself; one that is inside a long piece of
work, or too late with it, would not see that and is killed. The keeper starts none until it is wanted again.
"""

from __future__ import annotations

import asyncio
import logging

import grpc

from dormouse_api.status import CallError
from dormouse_worker.common.errors import ModelUnreadable, WorkerError
from dormouse_worker.common.ipc import State
from dormouse_worker.common.lifecycle import RETRY_AFTER_S, STEPPING
from dormouse_worker.front.conduct.refusals import precondition
from dormouse_worker.front.engine.command_queue import CommandQueue
from dormouse_worker.front.worker import Worker

logger = logging.getLogger(__name__)


class Standby:
    """Owns the sleep at level 3 under way, of which there is at most one."""

    def __init__(self, worker: Worker, turns: CommandQueue) -> None:
        self._worker = worker
        self._turns = turns
        self._entering: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Standby({'entering' if self._entering else self._worker.board.state})"

    def require_possible(self) -> None:
        """Raise CallError FAILED_PRECONDITION for a worker whose engine has ranks in other pods.

        These would start again and wait beside the memory that they hold: a group sleeps at level 1 or 2, or its pods
        end.
        """
        if (num_pods := self._worker.settings.place.num_nodes) > 1:
            raise precondition(f"level is 3, but this worker leads a group of {num_pods} pods; allowed: 1 and 2")

    async def enter(self) -> None:
        """End the engine; return in STANDBY. Nobody is let in, and nothing runs. Who hangs up does not stop it."""
        if self._entering is None:
            if self._worker.board.state is State.STANDBY:
                return
            self._entering = self._turns.start_ahead("a sleep at level 3 is under way", self._enter)
            self._entering.add_done_callback(self._forget)
        await asyncio.shield(self._entering)

    async def join(self) -> bool:
        """Wait for the sleep at level 3 under way; return whether there was one."""
        if self._entering is None:
            return False
        await asyncio.shield(self._entering)
        return True

    def leave(self) -> None:
        """Have an engine started. Raises CallError where none could serve.

        UNAVAILABLE while the model's files do not answer, FAILED_PRECONDITION for what does not pass by itself.
        """
        worker = self._worker
        model = worker.served.edition.model
        if isinstance(model, ModelUnreadable):
            raise CallError(grpc.StatusCode.UNAVAILABLE, f"WakeUp: {model}", RETRY_AFTER_S[State.STANDBY])
        if isinstance(model, WorkerError):
            raise precondition(f"WakeUp: no engine can serve this model: {model.reason}: {model}")
        if worker.losses.is_gpu_unhealthy:
            assert worker.losses.failure is not None, "that is how it is known"
            raise precondition(f"WakeUp: {worker.losses.failure.message}; no engine is started again on this device")
        worker.leave_standby()

    async def _enter(self) -> None:
        worker, started_s = self._worker, self._worker.clock()
        comes_round = worker.board.engine.state in STEPPING and not worker.engine_overdue
        logger.info("engine ends", extra={"fields": {"state": worker.board.state, "at_once": not comes_round}})
        worker.wants_engine = False
        was_there = worker.link.is_alive
        await worker.link.end(at_once=not comes_round)
        worker.stand_by(worker.clock() - started_s if was_there else 0.0)

    def _forget(self, _: asyncio.Task[None]) -> None:
        self._entering = None
