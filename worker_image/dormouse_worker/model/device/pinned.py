"""Host memory from which a GPU copies at full speed: pages that cannot move, registered with the driver.

torch's own pinned memory is rounded up to powers of two and kept for ever; this is exact, and goes back when unmapped.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from dormouse_worker.model.device.cuda_calls import CudaCalls
from dormouse_worker.model.device.cuda_driver import CudaDriver
from dormouse_worker.model.device.driver import CHUNK_BYTES, Chunk, DeviceOutOfMemory
from dormouse_worker.model.device.host_driver import HostDriver


class PinnedDriver:
    """Implements `MemoryDriver` over host mappings: registered when mapped, which also makes them resident."""

    granularity = HostDriver.granularity
    chunk_bytes = CHUNK_BYTES
    gives_zeros = True

    def __init__(self, calls: CudaCalls, device: CudaDriver, mappings: HostDriver) -> None:
        self._calls, self._device, self._mappings = calls, device, mappings
        self._registered: dict[int, int] = {}  # address → bytes

    def __repr__(self) -> str:
        return f"PinnedDriver({self.pinned_bytes} bytes pinned, {self._mappings!r})"

    @property
    def pinned_bytes(self) -> int:
        """Return how much host memory cannot move."""
        return sum(self._registered.values())

    def seams(self, start: int, end: int) -> list[int]:
        """Return the addresses within (start, end) at which one registration ends and the next begins.

        The driver refuses a copy over such a seam.
        """
        return sorted(address for address in self._registered if start < address < end)

    def free_bytes(self) -> int:
        """See `MemoryDriver`."""
        return self._mappings.free_bytes()

    def promised(self, num_bytes: int) -> AbstractContextManager[None]:
        """See `MemoryDriver`."""
        return self._mappings.promised(num_bytes)

    def reserve(self, num_bytes: int) -> int:
        """See `MemoryDriver`."""
        return self._mappings.reserve(num_bytes)

    def release(self, address: int, num_bytes: int) -> None:
        """See `MemoryDriver`."""
        self._mappings.release(address, num_bytes)

    def create(self, num_bytes: int) -> Chunk:
        """See `MemoryDriver`."""
        return self._mappings.create(num_bytes)

    def destroy(self, chunk: Chunk) -> None:
        """See `MemoryDriver`."""
        self._mappings.destroy(chunk)

    def map(self, address: int, chunk: Chunk, num_bytes: int, *, is_sparse: bool = False) -> None:
        """See `MemoryDriver`. Portable: pinned for every context, so that any thread and rank may copy."""
        del is_sparse  # pinned memory is there as a whole
        self._mappings.map(address, chunk, num_bytes)
        try:
            self._device.make_current()
            flags = self._calls.bindings.CU_MEMHOSTREGISTER_PORTABLE
            self._calls.call("cuMemHostRegister", address, num_bytes, flags, wanted_bytes=num_bytes)
        except BaseException as error:
            self._mappings.unmap(address, num_bytes)
            if isinstance(error, DeviceOutOfMemory):  # it is the host's memory that is missing
                raise DeviceOutOfMemory(num_bytes, self.free_bytes()) from error
            raise
        self._registered[address] = num_bytes

    def unmap(self, address: int, num_bytes: int) -> None:
        """See `MemoryDriver`."""
        self._device.make_current()
        self._calls.call("cuMemHostUnregister", address)
        del self._registered[address]
        self._mappings.unmap(address, num_bytes)

    def tensor(self, address: int, num_bytes: int) -> torch.Tensor:
        """See `MemoryDriver`."""
        return self._mappings.tensor(address, num_bytes)
