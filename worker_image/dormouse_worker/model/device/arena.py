"""An arena: one address range, reserved once, with physical memory behind it only while it is mapped.

    range    |<---------------------------- reserved_bytes ---------------------------->|
    chunks   |  chunk 0  |  chunk 1  |  chunk 2  |  nothing: touching it is fatal        |
             |<------------ size_bytes --------->|

Tensors are views of the range, so their addresses never change, however often the memory leaves and returns: CUDA
graphs stay valid, and nobody who holds a view has to be told. An arena is in one of three states:

    EMPTY --prepare--> PREPARED --map--> MAPPED --unmap--> EMPTY        PREPARED --cancel--> EMPTY
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dormouse_worker.model.device.driver import Chunk, DeviceOutOfMemory, MemoryDriver
from dormouse_worker.model.tensors import Dtype, Tensor, pointer_to

ALIGNMENT_BYTES = 512  # of what lies in an arena: what torch's own allocator gives, and kernels may count on


class Arena:
    """Owns one range and the chunks behind it."""

    def __init__(
        self,
        tag: str,
        driver: MemoryDriver,
        reserved_bytes: int,
        *,
        chunk_bytes: int | None = None,
        is_sparse: bool = False,
    ) -> None:
        """Reserve the range, rounded up; it costs no memory. Raises OSError. See `MemoryDriver.map` for `is_sparse`."""
        self.tag = tag
        self._is_sparse = is_sparse
        self.reserved_bytes = round_up(max(1, reserved_bytes), driver.granularity)
        self._driver = driver
        self._chunk_bytes = round_up(chunk_bytes or driver.chunk_bytes, driver.granularity)
        self._address = driver.reserve(self.reserved_bytes)
        self._chunks: list[tuple[Chunk, int]] = []  # each with its size
        self._base: Tensor | None = None
        self.is_mapped = False

    def __repr__(self) -> str:
        state = "mapped" if self.is_mapped else "prepared" if self._chunks else "empty"
        return f"Arena({self.tag}, {state}, {self.size_bytes} of {self.reserved_bytes} bytes)"

    @property
    def size_bytes(self) -> int:
        """Return the physical memory held, mapped or prepared."""
        return sum(size for _, size in self._chunks)

    def whole_bytes(self, num_bytes: int) -> int:
        """Return the physical memory that `prepare` takes for so many bytes."""
        return round_up(num_bytes, self._driver.granularity)

    def prepare(self, num_bytes: int) -> None:
        """Take all the physical memory for the first `num_bytes`; prepared already = nothing more is taken.

        Raises DeviceOutOfMemory for the whole arena; any error leaves nothing held. ValueError beyond the range.
        """
        if num_bytes > self.reserved_bytes:
            raise ValueError(f"{self.tag}: {num_bytes} bytes do not fit the {self.reserved_bytes} reserved")
        if self._chunks:
            return
        try:
            for size in _split(self.whole_bytes(num_bytes), self._chunk_bytes):
                self._chunks.append((self._driver.create(size), size))
        except DeviceOutOfMemory as error:
            free_bytes = error.free_bytes + self.size_bytes
            self.cancel()
            raise DeviceOutOfMemory(self.whole_bytes(num_bytes), free_bytes) from error
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Give prepared memory back; nothing happens to an arena that is empty."""
        assert not self.is_mapped, "unmap it instead"
        self._destroy()

    def map(self) -> None:
        """Put the prepared chunks behind the range. Raises DeviceOutOfMemory; any error leaves nothing held."""
        assert not self.is_mapped, "mapped already"
        mapped: list[tuple[int, int]] = []
        address = self._address
        try:
            for chunk, size in self._chunks:
                self._driver.map(address, chunk, size, is_sparse=self._is_sparse)
                mapped.append((address, size))
                address += size
        except BaseException:
            for start, size in mapped:
                self._driver.unmap(start, size)
            self._destroy()
            raise
        self.is_mapped = True

    def unmap(self) -> int:
        """Give all physical memory back; return how much. Nothing happens to an arena that is empty.

        Whoever reads or writes the views must have finished: the device is synchronized before.
        """
        freed_bytes = self.size_bytes
        if self.is_mapped:
            address = self._address
            for _, size in self._chunks:
                self._driver.unmap(address, size)
                address += size
        self.is_mapped = False
        self._destroy()
        return freed_bytes

    def close(self) -> None:
        """Give memory and range back; every view is invalid afterwards."""
        self.unmap()
        self._base = None
        self._driver.release(self._address, self.reserved_bytes)

    def tensor(self, offset: int, shape: Sequence[int], dtype: Dtype) -> Tensor:
        """Return a contiguous view that begins `offset` bytes into the range. Only of a mapped arena."""
        end = offset + math.prod(shape) * dtype.itemsize
        return self.bytes(offset, end).view(dtype).reshape(tuple(shape))

    def bytes(self, start: int, end: int) -> Tensor:
        """Return the bytes [start, end), uint8. Only of a mapped arena."""
        assert self.is_mapped, "a view needs memory behind it when it is made"
        assert end <= self.size_bytes, f"{self.tag}: a view up to {end} passes the mapped {self.size_bytes} bytes"
        return self._whole()[start:end]

    def end_of(self, view: Tensor) -> int:
        """Return where a contiguous view ends, in bytes into the range; 0 for a tensor that lies elsewhere."""
        start = pointer_to(view) - self._address
        return start + view.nbytes if 0 <= start < self.reserved_bytes else 0

    def _whole(self) -> Tensor:
        if self._base is None:
            self._base = self._driver.tensor(self._address, self.reserved_bytes)
        return self._base

    def _destroy(self) -> None:
        for chunk, _ in self._chunks:
            self._driver.destroy(chunk)
        self._chunks = []


def round_up(num_bytes: int, unit: int) -> int:
    """Return the next multiple of the unit."""
    return -(-num_bytes // unit) * unit


def _split(total: int, part: int) -> list[int]:
    whole, rest = divmod(total, part)
    return [part] * whole + [rest] * (rest > 0)
