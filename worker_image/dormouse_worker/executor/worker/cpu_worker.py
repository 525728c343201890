"""The worker on the CPU: device and host memory are one, so the resident memory of this process is what is measured."""

from __future__ import annotations

from dormouse_worker.common.settings import HEADS
from dormouse_worker.executor.worker.rank_worker import RankWorker
from dormouse_worker.model.device.cpu import CpuDevice


class CpuWorker(RankWorker):
    """A `RankWorker` on the CPU."""

    heads = HEADS

    def make_device(self) -> CpuDevice:
        """See `DeviceWorker`."""
        return CpuDevice(self.host)
