"""What every worker on a GPU does alike: it opens its device, and asks NVML what it takes there."""

from __future__ import annotations

from dormouse_worker.executor.worker.torch_worker import TorchWorker
from dormouse_worker.model.device.cuda import open_cuda_device
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.memory.gpu_health import GpuLost, Nvml, own_bytes
from dormouse_worker.model.memory.nvml import open_nvml


class OnGpu(TorchWorker):
    """Stands before the class that says what the worker does."""

    _nvml: Nvml | None = None

    def make_device(self) -> Device:
        """See `DeviceWorker`."""
        device = open_cuda_device(self.host, expected=self.settings.expected_device)
        self._nvml = open_nvml(device.name)
        return device

    def nvml_own_bytes(self) -> int | None:
        """See `TorchWorker`. A device that is lost tells nothing here: who watches it ends this process."""
        try:
            return None if self._nvml is None else own_bytes(self._nvml, self.host)
        except GpuLost:
            return None
