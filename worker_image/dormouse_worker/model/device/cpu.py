"""The CPU as a device: device memory and host memory are one."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from dormouse_worker.common.host import Host
from dormouse_worker.model.device.host_driver import HostDriver


class CpuDevice:
    """Implements `Device`."""

    name = "cpu"
    torch_device = torch.device("cpu")
    capability = None
    copies = None
    has_copy_engine = False

    def __init__(self, host: Host) -> None:
        self.memory = HostDriver(host.available_bytes)

    def __repr__(self) -> str:
        return f"CpuDevice({self.memory!r})"

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Device`."""
        target.copy_(source)

    def counting_on(self, num_bytes: int) -> AbstractContextManager[None]:
        """See `Device`."""
        return self.memory.counting_on(num_bytes)

    def synchronize(self) -> None:
        """See `Device`: nothing is ever under way."""
