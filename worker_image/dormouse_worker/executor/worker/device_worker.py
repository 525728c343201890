"""What every worker on a device owns: the device, the account of its memory, what the last profile measured.

Imports no torch.
"""

from __future__ import annotations

from abc import abstractmethod

from dormouse_worker.common.host import Host
from dormouse_worker.common.ipc import MemoryReport
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.worker.sleeping_worker import SleepingWorker
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.memory.resident import Meter


class DeviceWorker(SleepingWorker):
    """Implements of `WorkerBase` what has to do with the device; a subclass says what is computed on it."""

    def __init__(self, settings: EngineSettings, rank: int, host: Host | None = None) -> None:
        super().__init__(settings, rank)
        self.host = host or Host()
        self._device: Device | None = None
        self._meter: Meter | None = None
        self._report: MemoryReport | None = None

    @abstractmethod
    def make_device(self) -> Device:
        """Return the device; the first thing that may touch it. Raises InvalidSettings if it cannot be used."""

    @abstractmethod
    def make_meter(self, device: Device) -> Meter:
        """Return who measures what this process takes of the device's memory."""

    @abstractmethod
    def set_num_threads(self, wanted: int) -> None:
        """Compute with so many threads from now on, where the processor computes."""

    @property
    def device(self) -> Device:
        """Return the device; there is one after `init_device`."""
        assert self._device is not None, "init_device comes first"
        return self._device

    @property
    def meter(self) -> Meter:
        """Return who measures the memory; there is one after `init_device`."""
        assert self._meter is not None, "init_device comes first"
        return self._meter

    def get_memory_report(self) -> MemoryReport | None:
        """See `WorkerBase`."""
        return self._report

    def _take_device(self, layout: Layout) -> Meter:
        """Make the device, and return its meter, which is to be opened once all that stays taken is.

        The ranks of a stage share a pod's cores, unless the settings say how many a rank has.
        """
        threads = self.host.num_threads(self.settings.threads)
        self.set_num_threads(threads if self.settings.threads else max(1, threads // layout.tensor))
        self._device = self.make_device()
        self._meter = self.make_meter(self._device)
        return self._meter

    def _release_unused(self) -> None:
        """Give back what the allocator keeps; safe before `init_device`."""
        if self._meter is not None:
            self._meter.release_unused()
