"""Stand-in workers of a pool in virtual time: what they do takes as long as the trace says, and changes are told.

They keep the contract of grants, and a device raises where two of them have its memory (`SharedDevice`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from dormouse_operator.model import AWAKE, Pod, Worker, WorkerState
from dormouse_operator.testing.fake_worker import FakeWorker
from dormouse_operator.testing.pooled import PooledWorker, PooledWorkers
from dormouse_operator.testing.workers import without_counts
from dormouse_worker.front.engine.status_board import Changes

DRAIN_STEP_S = 2.0  # a call for a drain waits so long at most


class Pace(Protocol):
    """How long workers take, and who hears of what they do."""

    def wake_s(self, worker: PooledWorker) -> float:
        """Return how long a wake from level 1 takes."""

    def sleep_s(self, worker: PooledWorker) -> float:
        """Return how long a sleep takes once it is drained."""

    def parked(self, worker: PooledWorker) -> None:
        """Hear that all requests of a worker are about to be ended."""

    def left(self, worker: PooledWorker) -> None:
        """Hear that a worker begins to give its memory back."""

    def changed(self, worker: PooledWorker) -> None:
        """Hear that a worker is in another state."""


@dataclass(slots=True)
class PacedWorkers(PooledWorkers):
    """WorkerControl over workers that take their time."""

    pace: Pace = field(kw_only=True)
    changes: dict[str, Changes] = field(default_factory=lambda: defaultdict(Changes))  # by UID of the pod

    def pooled(self, pod: Pod) -> PooledWorker:
        """Return the worker of a pod."""
        worker = self.at(pod)
        assert isinstance(worker, PooledWorker), "all are a pool's"
        return worker

    async def watch_status(self, pod: Pod) -> AsyncIterator[Worker]:
        """See WorkerControl."""
        told = None
        while True:
            status = self.at(pod).status()
            if without_counts(status) == told:
                await self.changes[pod.uid].wait()
                continue
            told = without_counts(status)
            yield status

    async def drain(self, pod: Pod, *, epoch: int) -> int:
        """See WorkerControl. Waits a moment for requests to end."""
        worker = self.pooled(pod)
        worker.drain(epoch)
        self.tell(worker)
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_STEP_S):
                await self.changes[pod.uid].until(lambda: not worker.running_requests)
        return worker.running_requests

    async def prepare_sleep(
        self, pod: Pod, *, epoch: int, level: int, abort: bool, request_counter: int | None = None
    ) -> None:
        """See WorkerControl."""
        worker = self.pooled(pod)
        if abort and worker.state in AWAKE:
            self.pace.parked(worker)
        await super(PacedWorkers, self).prepare_sleep(
            pod, epoch=epoch, level=level, abort=abort, request_counter=request_counter
        )

    async def sleep(self, pod: Pod, *, epoch: int, level: int, abort: bool) -> Worker:
        """See WorkerControl."""
        worker = self.pooled(pod)
        if worker.state in AWAKE:
            self.pace.left(worker)
            await asyncio.sleep(self.pace.sleep_s(worker))
        return await super(PacedWorkers, self).sleep(pod, epoch=epoch, level=level, abort=abort)

    async def wake_up(self, pod: Pod, *, epoch: int) -> Worker:
        """See WorkerControl."""
        worker = self.pooled(pod)
        if worker.state is WorkerState.ASLEEP and worker.grant:
            worker.device.take(worker)
            worker.state = WorkerState.WAKING
            self.tell(worker)
            await asyncio.sleep(self.pace.wake_s(worker))
            worker.state = WorkerState.ASLEEP  # from where its state machine wakes it
        return await super(PacedWorkers, self).wake_up(pod, epoch=epoch)

    def note_end(self, worker: PooledWorker) -> None:
        """Have a drain hear that a request ended."""
        self.changes[worker.pod_uid].notify()

    def tell(self, worker: PooledWorker) -> None:
        """Have everybody hear that a worker changed."""
        self.changes[worker.pod_uid].notify()
        self.pace.changed(worker)

    def _do(self, pod: Pod, command: Callable[[FakeWorker], None]) -> Worker:
        try:
            return super(PacedWorkers, self)._do(pod, command)
        finally:
            self.tell(self.pooled(pod))
