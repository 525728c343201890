"""The worker of an encoder that never imports torch: our kernels compute vectors, on the processor."""

from __future__ import annotations

from dormouse_worker.executor.worker.kernel_worker import KernelWorker
from dormouse_worker.executor.worker.pooling_worker import PoolingWorker
from dormouse_worker.model.bare_pooling.loader import BarePooler, load_embedder
from dormouse_worker.model.device.arrays import ArrayDevice
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.memory.resident import ResidentMeter


class BarePoolingWorker(KernelWorker, PoolingWorker):
    """A `PoolingWorker` for the models of which `why_torch` knows no reason."""

    def make_device(self) -> ArrayDevice:
        """See `DeviceWorker`."""
        return ArrayDevice(self.host)

    def make_meter(self, device: Device) -> ResidentMeter:
        """See `DeviceWorker`."""
        del device  # its memory is the process's
        return ResidentMeter(self.host, self.settings)

    def set_num_threads(self, wanted: int) -> None:
        """See `DeviceWorker`."""
        self._kernels.set_num_threads(wanted)

    def make_pooler(self) -> BarePooler:
        """See `PoolingWorker`."""
        return load_embedder(self.settings, self.device, self._kernels)
