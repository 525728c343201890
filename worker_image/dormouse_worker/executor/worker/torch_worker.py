"""What every worker with torch does alike: its threads, its check, how a device's memory is measured."""

from __future__ import annotations

import torch

from dormouse_worker.executor.worker import setup
from dormouse_worker.executor.worker.device_worker import DeviceWorker
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.memory.meters import make_meter
from dormouse_worker.model.memory.resident import Meter


class TorchWorker(DeviceWorker):
    """Implements of `DeviceWorker` all but which device it is; stands before the class that says what is computed."""

    def nvml_own_bytes(self) -> int | None:
        """Return what the device's driver counts as this process's; None where it does not tell."""
        return None

    def check_health(self) -> None:
        """See `WorkerBase`. Computes one small sum, which fails if torch does."""
        setup.check_sum(self.device.torch_device)

    def set_num_threads(self, wanted: int) -> None:
        """See `DeviceWorker`."""
        torch.set_num_threads(wanted)

    def make_meter(self, device: Device) -> Meter:
        """See `DeviceWorker`."""
        return make_meter(device, self.host, self.settings, self.nvml_own_bytes)
