"""The processor as a device for an engine that has no torch: what lies in its memory are numpy's arrays."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from dormouse_worker.common.host import Host
from dormouse_worker.model.device.host_driver import HostDriver
from dormouse_worker.model.tensors import Tensor


class ArrayDriver(HostDriver):
    """A `HostDriver` whose ranges are arrays."""

    def tensor(self, address: int, num_bytes: int) -> Tensor:
        """See `MemoryDriver`."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))


class ArrayDevice:
    """Implements `Device`."""

    name = "cpu"
    torch_device: Any = None  # nobody who asks for it may be handed this device
    capability = None
    copies = None
    has_copy_engine = False

    def __init__(self, host: Host) -> None:
        self.memory = ArrayDriver(host.available_bytes)

    def __repr__(self) -> str:
        return f"ArrayDevice({self.memory!r})"

    def copy(self, target: Tensor, source: Tensor) -> None:
        """See `Device`."""
        target[:] = source

    def counting_on(self, num_bytes: int) -> AbstractContextManager[None]:
        """See `Device`."""
        return self.memory.counting_on(num_bytes)

    def synchronize(self) -> None:
        """See `Device`: nothing is ever under way."""
