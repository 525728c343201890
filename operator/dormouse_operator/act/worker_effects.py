"""Actions on workers: each is one idempotent command, or two phases of one. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import assert_never

from dormouse_operator.act.two_phase import TwoPhase
from dormouse_operator.act.workers import WorkerControl
from dormouse_operator.decide.actions import (
    Drain,
    EndRequests,
    InitializeCache,
    PutToSleep,
    SetAdapters,
    SwapEngine,
    WakeUp,
    WorkerAction,
)
from dormouse_operator.decide.situation import Situation
from dormouse_operator.errors import WorkerUnreachable
from dormouse_operator.manifests import worker_arguments
from dormouse_operator.model import AT_REST, AWAKE, Pod


class WorkerEffects:
    """Commands workers. Raises WorkerError."""

    def __init__(self, workers: WorkerControl) -> None:
        """Take the way to workers."""
        self._workers = workers
        self._two_phase = TwoPhase(workers)

    async def act(self, situation: Situation, action: WorkerAction, epoch: int) -> bool:
        """Carry out one action; return whether it needs more time."""
        match action:
            case InitializeCache(pod, num_gpu, num_cpu):
                await self._workers.initialize_cache(pod, epoch=epoch, num_gpu_blocks=num_gpu, num_cpu_blocks=num_cpu)
            case Drain(pod):
                return not await self.drain(pod, epoch)
            case EndRequests(pod):
                await self._end_requests(pod, epoch)
            case PutToSleep(pods, level, must_abort, counters):
                await self._two_phase.put_to_sleep(pods, level, epoch=epoch, abort=must_abort, counters=counters)
            case WakeUp(pods):
                await self._wake_up(situation, pods, epoch)
            case SetAdapters(pod, adapters, digest):
                await self._workers.set_loras(pod, epoch=epoch, adapters=adapters, digest=digest)
            case SwapEngine(pod, must_end):
                return not await self._swap(situation, pod, epoch, must_end=must_end)
            case _:
                assert_never(action)
        return False

    async def drain(self, pod: Pod, epoch: int) -> bool:
        """Have a worker refuse new requests and wait a moment; return whether none is left."""
        return await self._workers.drain(pod, epoch=epoch) == 0

    async def _end_requests(self, pod: Pod, epoch: int) -> None:
        """End what runs: the first phase of a sleep does that, whatever follows it."""
        await self._workers.prepare_sleep(pod, epoch=epoch, level=1, abort=True)

    async def _wake_up(self, situation: Situation, pods: Sequence[Pod], epoch: int) -> None:
        """Wake who sleeps; who only drains is opened again."""
        asleep = [pod for pod in pods if situation.state(pod) in AT_REST]
        draining = [pod for pod in pods if pod not in asleep]
        await asyncio.gather(*(self._workers.wake_up(pod, epoch=epoch) for pod in draining))
        await self._two_phase.wake_up(asleep, epoch=epoch)

    async def _swap(self, situation: Situation, pod: Pod, epoch: int, *, must_end: bool) -> bool:
        """Give a worker another engine once its requests have ended or had their time; return whether it was done."""
        deployment, worker = situation.deployment, situation.worker(pod)
        is_begun = worker is not None and bool(worker.swapping_to)
        if must_end:
            await self._end_requests(pod, epoch)
        elif not is_begun and situation.state(pod) in AWAKE and not await self.drain(pod, epoch):
            return False
        try:
            await self._workers.swap_engine(
                pod,
                epoch=epoch,
                arguments=worker_arguments(deployment),
                settings_digest=situation.revision,
                timeout_s=float(deployment.rollout.progress_deadline_s),
            )
        except WorkerUnreachable:  # it takes longer than one call, and goes on without us
            return False
        return True
