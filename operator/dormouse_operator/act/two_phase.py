"""Sleep and wake of several workers as one: all prepare, then all commit; a refusal to prepare changes nobody.

A commit that fails is not taken back: the worker rolled back by itself, the next look goes on with those that are left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType

from dormouse_operator.act.workers import WorkerControl
from dormouse_operator.errors import GroupRefused, RequestCameIn, WorkerError, WorkerRefused
from dormouse_operator.model import Pod, SleepLevel, WorkerState

_LOG = logging.getLogger(__name__)

Call = Callable[[Pod], Awaitable[object]]


class TwoPhase:
    """Conducts the two phases. Every method raises GroupRefused, which says who refused, or RequestCameIn."""

    def __init__(self, workers: WorkerControl) -> None:
        """Take the way to workers."""
        self._workers = workers

    async def put_to_sleep(
        self,
        pods: Sequence[Pod],
        level: SleepLevel,
        *,
        epoch: int,
        abort: bool,
        counters: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Put all of them to sleep; those that prepared are opened again if one refuses to.

        `counters`, by pod name: RequestCameIn where a worker has accepted another number of requests.
        """
        workers = self._workers

        async def prepare(pod: Pod) -> None:
            counter = counters.get(pod.name)
            try:
                await workers.prepare_sleep(pod, epoch=epoch, level=level, abort=abort, request_counter=counter)
            except WorkerRefused as error:
                if counter is not None and (await workers.get_status(pod)).request_counter != counter:
                    raise RequestCameIn(str(error)) from error
                raise

        async def commit(pod: Pod) -> None:
            await workers.sleep(pod, epoch=epoch, level=level, abort=abort)

        async def reopen(pod: Pod) -> None:
            if (await workers.get_status(pod)).state is WorkerState.DRAINING:
                await workers.wake_up(pod, epoch=epoch)

        await _run(pods, prepare=prepare, commit=commit, take_back=reopen)

    async def wake_up(self, pods: Sequence[Pod], *, epoch: int) -> None:
        """Wake all of them; those that reserved give it back if one cannot."""
        workers = self._workers

        async def prepare(pod: Pod) -> None:
            await workers.prepare_wake_up(pod, epoch=epoch)

        async def commit(pod: Pod) -> None:
            await workers.wake_up(pod, epoch=epoch)

        async def give_back(pod: Pod) -> None:
            worker = await workers.get_status(pod)
            if worker.state is WorkerState.ASLEEP:  # a sleep of what sleeps already gives back what it reserved
                await workers.sleep(pod, epoch=epoch, level=worker.sleep_level, abort=False)

        await _run(pods, prepare=prepare, commit=commit, take_back=give_back)


async def _run(pods: Sequence[Pod], *, prepare: Call, commit: Call, take_back: Call) -> None:
    refusals = await _on_all(pods, prepare)
    if refusals:
        prepared = [pod for pod in pods if pod.name not in refusals]
        for name, error in (await _on_all(prepared, take_back)).items():
            _LOG.warning("pod %s did not take its preparation back, it ends by itself: %s", name, error)
    else:
        refusals = await _on_all(pods, commit)
    if came_in := next((error for error in refusals.values() if isinstance(error, RequestCameIn)), None):
        raise came_in
    if refusals:
        raise GroupRefused({name: str(error) for name, error in refusals.items()})


async def _on_all(pods: Sequence[Pod], call: Call) -> dict[str, WorkerError]:
    """Call all at once; return what went wrong, by pod name."""
    results = await asyncio.gather(*(call(pod) for pod in pods), return_exceptions=True)
    failures: dict[str, WorkerError] = {}
    for pod, result in zip(pods, results, strict=True):
        if isinstance(result, WorkerError):
            failures[pod.name] = result
        elif isinstance(result, BaseException):
            raise result
    return failures
