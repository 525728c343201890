"""A stand-in device's memory: host mappings, of which only so much is given as the device's books have left."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from dormouse_worker.model.device.driver import CHUNK_BYTES, Chunk
from dormouse_worker.model.device.host_driver import HostDriver
from dormouse_worker.model.device.ledger_file import DeviceShare

if TYPE_CHECKING:
    import torch

UNBOUNDED_BYTES = 1 << 62  # the books bound it


class LedgerDriver:
    """Implements `MemoryDriver` over one process's share of a device."""

    granularity = HostDriver.granularity
    chunk_bytes = CHUNK_BYTES
    gives_zeros = True

    def __init__(self, share: DeviceShare) -> None:
        self._share = share
        self._mappings = HostDriver(lambda: UNBOUNDED_BYTES)
        self._sizes: dict[Chunk, int] = {}
        self._wanted_activation_bytes = 0
        self.activation_bytes = 0  # held now, in place of what a GPU's allocator keeps

    def __repr__(self) -> str:
        return f"LedgerDriver({self._share!r}, {self.used_bytes} + {self.activation_bytes} bytes used)"

    @property
    def total_bytes(self) -> int:
        """Return the device's memory."""
        return self._share.total_bytes

    @property
    def used_bytes(self) -> int:
        """Return what this process's arenas hold."""
        return sum(self._sizes.values())

    def own_bytes(self) -> int:
        """Return what the books say this process holds: context, arenas and activations."""
        return self._share.own().used_bytes

    def free_bytes(self) -> int:
        """See `MemoryDriver`."""
        return self._share.free_bytes()

    def promised(self, num_bytes: int) -> AbstractContextManager[None]:
        """See `MemoryDriver`. Nobody else gets it meanwhile."""
        return self._share.promised(num_bytes)

    def expect_activations(self, num_bytes: int) -> None:
        """Say how much `take_activations` takes from now on."""
        self.give_activations()
        self._wanted_activation_bytes = num_bytes

    def take_activations(self) -> None:
        """Hold what passes take; nothing happens if it is held. Raises DeviceOutOfMemory."""
        if self.activation_bytes != self._wanted_activation_bytes:
            self._share.take(self._wanted_activation_bytes)
            self.activation_bytes = self._wanted_activation_bytes

    def give_activations(self) -> None:
        """Give it back, as an allocator whose cache is emptied; nothing happens if it is not held."""
        if self.activation_bytes:
            self._share.give(self.activation_bytes)
            self.activation_bytes = 0

    def reserve(self, num_bytes: int) -> int:
        """See `MemoryDriver`."""
        return self._mappings.reserve(num_bytes)

    def release(self, address: int, num_bytes: int) -> None:
        """See `MemoryDriver`."""
        self._mappings.release(address, num_bytes)

    def create(self, num_bytes: int) -> Chunk:
        """See `MemoryDriver`."""
        self._share.take(num_bytes)
        chunk = self._mappings.create(num_bytes)
        self._sizes[chunk] = num_bytes
        return chunk

    def destroy(self, chunk: Chunk) -> None:
        """See `MemoryDriver`."""
        self._mappings.destroy(chunk)
        self._share.give(self._sizes.pop(chunk))

    def map(self, address: int, chunk: Chunk, num_bytes: int, *, is_sparse: bool = False) -> None:
        """See `MemoryDriver`."""
        self._mappings.map(address, chunk, num_bytes, is_sparse=is_sparse)

    def unmap(self, address: int, num_bytes: int) -> None:
        """See `MemoryDriver`."""
        self._mappings.unmap(address, num_bytes)

    def tensor(self, address: int, num_bytes: int) -> torch.Tensor:
        """See `MemoryDriver`."""
        return self._mappings.tensor(address, num_bytes)

    def close(self) -> None:
        """Give the context back too. No chunk may be left."""
        assert not self._sizes, f"{self!r} is closed with memory held"
        self._share.close()
