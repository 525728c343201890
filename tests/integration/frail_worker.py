"""A worker on the fake device that a test can upset from outside, in the middle of what it does.

It obeys files beside its model's: `die` names a verb of the device at whose next call the engine kills itself, once;
`neighbour` says how many bytes of the device somebody else holds.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.testing import FakeDeviceWorker
from dormouse_worker.model.device.testing import FakeCudaDriver, FakeDevice

DEVICE_BYTES = 1 << 30
DIE, NEIGHBOUR = "die", "neighbour"


class FrailDriver(FakeCudaDriver):
    """A device whose memory a neighbour may hold, and that may end its process."""

    def __init__(self, directory: Path) -> None:
        super().__init__(DEVICE_BYTES)
        self._directory = directory

    def free_bytes(self) -> int:
        """See `MemoryDriver`."""
        held = self._directory / NEIGHBOUR
        self.neighbour_bytes = int(held.read_text()) if held.exists() else 0
        return super().free_bytes()

    def unmap(self, address: int, num_bytes: int) -> None:
        """See `MemoryDriver`."""
        self.die_at("unmap")
        super().unmap(address, num_bytes)

    def die_at(self, verb: str) -> None:
        """End the process as the kernel does it, if this verb's hour has come."""
        order = self._directory / DIE
        if order.exists() and order.read_text() == verb:
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


class FrailDevice(FakeDevice):
    """A `FakeDevice` over a `FrailDriver`."""

    def __init__(self, driver: FrailDriver, host: Host) -> None:
        super().__init__(driver, host)
        self._driver = driver

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Device`."""
        self._driver.die_at("copy")
        super().copy(target, source)


class FrailWorker(FakeDeviceWorker):
    """A `FakeDeviceWorker` on a `FrailDevice`."""

    def __init__(self, settings: EngineSettings, rank: int) -> None:
        host = Host()
        super().__init__(settings, rank, host, FrailDevice(FrailDriver(settings.model_path), host))
