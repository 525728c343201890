"""What an arena needs of a device's memory: address ranges, and physical memory that comes and goes behind them.

The verbs are those of CUDA's virtual memory management (cuMemAddressReserve, cuMemCreate, cuMemMap and their
opposites). A range costs nothing; a chunk is what the device runs out of.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, NewType, Protocol

if TYPE_CHECKING:  # what only counts memory needs no torch
    import torch

CHUNK_BYTES = 256 << 20  # small enough that a lack of memory shows early, large enough that mapping costs nothing

Chunk = NewType("Chunk", int)  # physical memory that `create` gave


class DeviceOutOfMemory(Exception):
    """The device has not this much physical memory left."""

    def __init__(self, wanted_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{wanted_bytes} bytes are wanted, {free_bytes} are free")
        self.wanted_bytes = wanted_bytes
        self.free_bytes = free_bytes

    @property
    def missing_bytes(self) -> int:
        """Return how much more would have to be free; at least 1, also where the device says it has enough."""
        return max(1, self.wanted_bytes - self.free_bytes)


class MemoryDriver(Protocol):
    """One device's memory. Addresses and sizes are multiples of `granularity`; all sizes in bytes."""

    @property
    def granularity(self) -> int:
        """Return the smallest unit of physical memory."""

    @property
    def chunk_bytes(self) -> int:
        """Return how much an arena shall take at once."""

    @property
    def gives_zeros(self) -> bool:
        """Return whether memory that was just mapped holds zeros; else its contents are undefined."""

    def free_bytes(self) -> int:
        """Return the physical memory that `create` could give now, whoever else uses the device."""

    def promised(self, num_bytes: int) -> AbstractContextManager[None]:
        """Within the block, `create` is given this much in all. Raises DeviceOutOfMemory and has taken nothing then.

        A device that nobody can keep others from tells only whether there is so much now: `create` may fail yet.
        """

    def reserve(self, num_bytes: int) -> int:
        """Return the address of a new range with nothing behind it; touching it is fatal. Raises OSError."""

    def release(self, address: int, num_bytes: int) -> None:
        """Give a whole range back; nothing may be mapped in it."""

    def create(self, num_bytes: int) -> Chunk:
        """Take physical memory. Raises DeviceOutOfMemory and has taken nothing then."""

    def destroy(self, chunk: Chunk) -> None:
        """Give physical memory back that is not mapped (any more)."""

    def map(self, address: int, chunk: Chunk, num_bytes: int, *, is_sparse: bool = False) -> None:
        """Put a whole chunk behind a part of a range, readable and writable. See `gives_zeros` for its contents.

        Sparse: much of it may never be touched. Where memory comes with the first touch, it then comes in small pages.

        Raises DeviceOutOfMemory, for page tables and pinning cost memory too; then nothing is mapped.
        """

    def unmap(self, address: int, num_bytes: int) -> None:
        """Take the chunk away again; what was in it is lost. The device must have finished with it."""

    def tensor(self, address: int, num_bytes: int) -> torch.Tensor:
        """Return a uint8 tensor [num_bytes] over a range that owns nothing. The first page must be mapped by now."""


@contextmanager
def seen_free(memory: MemoryDriver, num_bytes: int) -> Iterator[None]:
    """Look whether there is so much, and nothing more: `MemoryDriver.promised` where others cannot be kept off."""
    free_bytes = memory.free_bytes()
    if num_bytes > free_bytes:
        raise DeviceOutOfMemory(num_bytes, free_bytes)
    yield
