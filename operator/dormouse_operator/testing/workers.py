"""For tests: the fake workers of a cluster, by address, as the operator calls them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

from dormouse_operator.errors import CredentialRefused, WorkerRefused, WorkerUnreachable
from dormouse_operator.model import DeviceGrant, Pod, Worker
from dormouse_operator.model.adapters import Adapter, HeldAdapter
from dormouse_operator.model.units import in_gib
from dormouse_operator.testing.fake_worker import FakeWorker


@dataclass(slots=True)
class FakeWorkers:
    """WorkerControl over fake workers, by address."""

    workers: dict[str, FakeWorker] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)  # GetStatus calls, by address
    watching: Counter[str] = field(default_factory=Counter)  # open streams, by address

    def at(self, pod: Pod) -> FakeWorker:
        """Return the worker there. Raises WorkerUnreachable, CredentialRefused."""
        if pod.ip not in self.workers:
            raise WorkerUnreachable("it does not accept connections")
        worker = self.workers[pod.ip]
        if worker.unwelcome:
            raise CredentialRefused(worker.unwelcome)
        return worker

    async def get_status(self, pod: Pod) -> Worker:
        """See WorkerControl."""
        await asyncio.sleep(0)
        self.asked[pod.ip] += 1
        return self.at(pod).status()

    async def watch_status(self, pod: Pod) -> AsyncIterator[Worker]:
        """See WorkerControl. Looks at the worker whenever the loop turns; breaks when the worker is gone."""
        self.watching[pod.ip] += 1
        told = None
        try:
            while True:
                await asyncio.sleep(0)
                status = self.at(pod).status()
                if without_counts(status) != told:
                    told = without_counts(status)
                    yield status
        finally:
            self.watching[pod.ip] -= 1

    async def initialize_cache(self, pod: Pod, *, epoch: int, num_gpu_blocks: int, num_cpu_blocks: int) -> Worker:
        """See WorkerControl."""
        assert num_cpu_blocks >= 0, "counts are never negative"
        return self._do(pod, lambda worker: worker.initialize_cache(epoch, num_gpu_blocks))

    async def drain(self, pod: Pod, *, epoch: int) -> int:
        """See WorkerControl."""
        return self.at(pod).drain(epoch)

    async def prepare_sleep(
        self, pod: Pod, *, epoch: int, level: int, abort: bool, request_counter: int | None = None
    ) -> None:
        """See WorkerControl."""
        assert level > 0, "0 is awake"
        counter = request_counter
        self._do(pod, lambda worker: worker.prepare_sleep(epoch, level=level, abort=abort, request_counter=counter))

    async def sleep(self, pod: Pod, *, epoch: int, level: int, abort: bool) -> Worker:
        """See WorkerControl."""
        return self._do(pod, lambda worker: worker.sleep(epoch, level=level, abort=abort))

    async def prepare_wake_up(self, pod: Pod, *, epoch: int) -> None:
        """See WorkerControl."""
        self._do(pod, lambda worker: worker.prepare_wake_up(epoch))
        if missing := self.at(pod).missing_bytes:
            raise WorkerRefused(f"{in_gib(missing)} of memory are missing to wake up")

    async def wake_up(self, pod: Pod, *, epoch: int) -> Worker:
        """See WorkerControl."""
        return self._do(pod, lambda worker: worker.wake_up(epoch))

    async def swap_engine(
        self, pod: Pod, *, epoch: int, arguments: Sequence[str], settings_digest: str, timeout_s: float
    ) -> Worker:
        """See WorkerControl."""
        assert timeout_s > 0, "a swap has a deadline"
        return self._do(pod, lambda worker: worker.swap_engine(epoch, settings_digest, arguments))

    async def grant_device(self, pod: Pod, *, epoch: int, grant: DeviceGrant, instance: str) -> Worker:
        """See WorkerControl."""
        return self._do(pod, lambda worker: worker.grant_device(epoch, grant, instance))

    async def revoke_device(self, pod: Pod, *, epoch: int, slot_epoch: int) -> Worker:
        """See WorkerControl."""
        return self._do(pod, lambda worker: worker.revoke_device(epoch, slot_epoch))

    async def set_loras(self, pod: Pod, *, epoch: int, adapters: Sequence[Adapter], digest: str) -> None:
        """See WorkerControl."""
        self._do(pod, lambda worker: worker.set_loras(epoch, adapters, digest))

    async def list_loras(self, pod: Pod) -> tuple[HeldAdapter, ...]:
        """See WorkerControl."""
        worker = self.at(pod)
        if worker.adapters.silent:
            raise WorkerUnreachable("it does not answer in time")
        return worker.list_loras()

    def _do(self, pod: Pod, command: Callable[[FakeWorker], None]) -> Worker:
        worker = self.at(pod)
        command(worker)
        return worker.status()


def without_counts(status: Worker) -> Worker:
    """Return the part of a status whose changes a worker tells."""
    return replace(status, running_requests=0, request_counter=0)
