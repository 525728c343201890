"""For tests: workers of a pool, and the device that those of one slot share. It raises where two of them overlap."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from dormouse_operator.errors import WorkerRefused
from dormouse_operator.model import DeviceGrant, Pod, Worker, WorkerState
from dormouse_operator.model.units import GIB
from dormouse_operator.testing.fake_worker import RISING, FakeWorker
from dormouse_operator.testing.workers import FakeWorkers

_HOLDS_NOTHING = {WorkerState.STANDBY, WorkerState.ASLEEP}


@dataclass(slots=True)
class SharedDevice:
    """The memory of a slot: who has more of it than a sleeper."""

    most: int = 1  # that may have memory at a time
    holders: list[PooledWorker] = field(default_factory=list)
    most_seen: int = 0

    def take(self, worker: PooledWorker) -> None:
        """Give memory to a worker."""
        if worker not in self.holders:
            self.holders.append(worker)
        self.most_seen = max(self.most_seen, len(self.holders))
        assert len(self.holders) <= self.most, f"on one device: {[holder.pod_uid for holder in self.holders]}"

    def give_back(self, worker: PooledWorker) -> None:
        """Take the memory of a worker; safe if it has none."""
        self.holders = [holder for holder in self.holders if holder is not worker]


@dataclass(slots=True, eq=False)
class PooledWorker(FakeWorker):
    """A worker with --device-grants: it uses the device under a grant alone, and begins in STANDBY."""

    total_bytes: int = 80 * GIB
    device: SharedDevice = field(default_factory=SharedDevice)
    instance: int = 1
    grant: DeviceGrant | None = None
    slot_epoch: int = 0  # the highest that it has heard of
    revoked_epoch: int = 0  # at which its last grant was taken back
    refused_slot_epoch: int = 0
    told_missing_bytes: int = 0  # by its last prepared wake
    started_under: DeviceGrant | None = None  # the grant of its engine; None = there is none
    refuses: set[str] = field(
        default_factory=set
    )  # of "sleep", "wake", "golden": what it refuses, or fails, for as long as it is in here
    hangs: set[str] = field(default_factory=set)  # of "sleep 1", "wake", …: what it never answers

    def status(self) -> Worker:
        """Return what it says of itself."""
        told = super(PooledWorker, self).status()
        return replace(
            told,
            instance=str(self.instance),
            grant=self.grant,
            needs_grant=True,
            refused_slot_epoch=self.refused_slot_epoch,
            missing_bytes=self.told_missing_bytes,
        )

    def grant_device(self, epoch: int, grant: DeviceGrant, instance: str) -> None:
        """Take a grant, unless it is meant for another instance, was taken back, or is older than one that is known."""
        self._begin("grant", epoch)
        if instance not in {"", str(self.instance)}:
            raise WorkerRefused(f"FAILED_PRECONDITION: instance {instance} is not {self.instance}")
        if grant.slot_epoch == self.revoked_epoch:
            raise WorkerRefused(f"FAILED_PRECONDITION: slot_epoch {grant.slot_epoch} was revoked")
        if self.grant is not None and self.grant.slot_epoch == grant.slot_epoch and self.grant != grant:
            raise WorkerRefused(f"FAILED_PRECONDITION: slot_epoch {grant.slot_epoch} was granted with other words")
        self._hear(grant.slot_epoch)
        self.grant = grant

    def revoke_device(self, epoch: int, slot_epoch: int) -> None:
        """Lose the grant."""
        self._begin("revoke", epoch)
        if self.grant is not None and slot_epoch >= self.slot_epoch:
            self._require(*_HOLDS_NOTHING)
        self._hear(slot_epoch)
        self.grant, self.revoked_epoch = None, slot_epoch

    def initialize_cache(self, epoch: int, count: int) -> None:
        """Allocate, under a grant."""
        self._require_grant()
        super(PooledWorker, self).initialize_cache(epoch, count)

    def prepare_sleep(self, epoch: int, *, level: int, abort: bool, request_counter: int | None = None) -> None:
        """Close, and be idle."""
        self._refuse("sleep")
        super(PooledWorker, self).prepare_sleep(epoch, level=level, abort=abort, request_counter=request_counter)

    def sleep(self, epoch: int, *, level: int, abort: bool) -> None:
        """Give the memory back."""
        super(PooledWorker, self).sleep(epoch, level=level, abort=abort)
        self.device.give_back(self)
        if self.state is WorkerState.STANDBY:
            self.started_under = None

    def prepare_wake_up(self, epoch: int) -> None:
        """Reserve the memory, under a grant."""
        self._require_grant()
        self._refuse("wake")
        self.told_missing_bytes = 0 if self.state in RISING else self.missing_bytes
        if self.told_missing_bytes:
            self.refused_slot_epoch = self.slot_epoch
        super(PooledWorker, self).prepare_wake_up(epoch)

    def wake_up(self, epoch: int) -> None:
        """Take the memory, under a grant: from STANDBY an engine loads first."""
        self._require_grant()
        if self.state is WorkerState.STANDBY and self.grant:
            self.started_under = self.grant
        super(PooledWorker, self).wake_up(epoch)
        self.told_missing_bytes = 0
        self.device.take(self)
        if "golden" in self.refuses:
            self.fail("Damaged", "golden tokens are others than before the sleep", has_report=True)

    def restart(self) -> None:
        """Start anew, as after a crash of the container: nothing is left on the device, and no grant is known."""
        super(PooledWorker, self).restart()
        self.device.give_back(self)
        self.state, self.sleep_level, self.grant, self.started_under = WorkerState.STANDBY, 3, None, None
        self.instance, self.slot_epoch, self.revoked_epoch = self.instance + 1, 0, 0
        self.refused_slot_epoch, self.told_missing_bytes = 0, 0
        self.running_requests = 0

    def _hear(self, slot_epoch: int) -> None:
        if slot_epoch < self.slot_epoch:
            raise WorkerRefused(f"FAILED_PRECONDITION: slot_epoch {slot_epoch} is older than {self.slot_epoch}")
        self.slot_epoch = slot_epoch

    def _refuse(self, what: str) -> None:
        if what in self.refuses:
            self.commands.append(f"{what} refused")
            self.refused_slot_epoch = self.slot_epoch
            raise WorkerRefused(f"FAILED_PRECONDITION: no {what}, as a test wants it")

    def _require_grant(self) -> None:
        if self.grant is None:
            raise WorkerRefused("FAILED_PRECONDITION: there is no grant of a device")
        started, budget = self.started_under, self.grant.budget_bytes
        if started is None or not budget:
            return
        is_reckoned = not started.budget_bytes and started.reserved_bytes >= self.grant.reserved_bytes > 0
        if not (is_reckoned or 0 < started.budget_bytes <= budget):
            self.commands.append("engine is too big")
            self.refused_slot_epoch = self.slot_epoch
            raise WorkerRefused(
                f"FAILED_PRECONDITION: its engine was started within {started.budget_bytes}: Sleep level 3 first"
            )


@dataclass(slots=True)
class PooledWorkers(FakeWorkers):
    """WorkerControl over fake workers, of which some never answer."""

    async def sleep(self, pod: Pod, *, epoch: int, level: int, abort: bool) -> Worker:
        """See WorkerControl."""
        await self._hang(pod, f"sleep {level}")
        return await super(PooledWorkers, self).sleep(pod, epoch=epoch, level=level, abort=abort)

    async def wake_up(self, pod: Pod, *, epoch: int) -> Worker:
        """See WorkerControl."""
        await self._hang(pod, "wake")
        return await super(PooledWorkers, self).wake_up(pod, epoch=epoch)

    async def _hang(self, pod: Pod, command: str) -> None:
        worker = self.at(pod)
        if isinstance(worker, PooledWorker) and command in worker.hangs:
            worker.commands.append(f"{command} hangs")
            await asyncio.Event().wait()
