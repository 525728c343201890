"""Host memory with the verbs of a device: anonymous mappings, given back to the kernel by madvise."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from dormouse_worker.model.device.driver import CHUNK_BYTES, Chunk, DeviceOutOfMemory, seen_free

if TYPE_CHECKING:
    import torch

HUGE_PAGE_BYTES = 2 << 20  # copying into fresh 4 KiB pages is bound by page faults, not by memory
_IS_RESIDENT = b"\1"  # what mincore says of a page
_NO_FILE = -1
_FAILED = ctypes.c_void_p(-1).value
_MAP_NORESERVE = 0x4000
_PROT_NONE = 0


class HostDriver:
    """Implements `MemoryDriver`. Physical memory comes with the first touch; `create` only keeps the books.

    reserved   PROT_NONE, costs nothing                   unmap: MADV_DONTNEED, then PROT_NONE
    mapped     read and write, huge pages unless sparse   map: PROT_READ | PROT_WRITE, MADV_HUGEPAGE or MADV_NOHUGEPAGE

    What was created and never touched yet is promised: it is not free, although the kernel takes it for free.
    """

    granularity = HUGE_PAGE_BYTES
    chunk_bytes = CHUNK_BYTES
    gives_zeros = True

    def __init__(self, available_bytes: Callable[[], int]) -> None:
        """`available_bytes` tells how much memory this process may still take."""
        self._available_bytes = available_bytes
        self._chunks: dict[Chunk, int] = {}
        self._num_created = 0
        self._coming_bytes = 0
        self._mapped: dict[int, int] = {}  # address → bytes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
        for name in ("munmap", "mprotect", "madvise"):
            getattr(libc, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int][: 2 + (name != "munmap")]
        self._libc = libc

    def __repr__(self) -> str:
        return f"HostDriver({len(self._chunks)} chunks, {self.used_bytes} bytes)"

    @property
    def used_bytes(self) -> int:
        """Return the memory that this driver's arenas hold."""
        return sum(self._chunks.values())

    def free_bytes(self) -> int:
        """See `MemoryDriver`. Nobody is given what is promised to somebody else."""
        promised_bytes = self.used_bytes - self._resident_bytes()
        return max(0, self._available_bytes() + self._coming_bytes - promised_bytes)

    @contextmanager
    def counting_on(self, num_bytes: int) -> Iterator[None]:
        """Within the block, promise so much more: it goes back to the host before all that is promised is touched."""
        self._coming_bytes += num_bytes
        try:
            yield
        finally:
            self._coming_bytes -= num_bytes

    def promised(self, num_bytes: int) -> AbstractContextManager[None]:
        """See `MemoryDriver`."""
        return seen_free(self, num_bytes)

    def reserve(self, num_bytes: int) -> int:
        """See `MemoryDriver`. Reserves a huge page more and cuts the ends off, so that the range is aligned."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        start = self._libc.mmap(None, num_bytes + HUGE_PAGE_BYTES, _PROT_NONE, flags, _NO_FILE, 0)
        if start == _FAILED:
            raise _os_error(f"mmap of {num_bytes} bytes")
        address = -(-int(start) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        end, mapped_end = address + num_bytes, start + num_bytes + HUGE_PAGE_BYTES
        for begin, length in ((start, address - start), (end, mapped_end - end)):
            if length:
                self._call("munmap", begin, length)
        return address

    def release(self, address: int, num_bytes: int) -> None:
        """See `MemoryDriver`."""
        self._call("munmap", address, num_bytes)

    def create(self, num_bytes: int) -> Chunk:
        """See `MemoryDriver`."""
        free_bytes = self.free_bytes()
        if num_bytes > free_bytes:
            raise DeviceOutOfMemory(num_bytes, free_bytes)
        self._num_created += 1
        chunk = Chunk(self._num_created)
        self._chunks[chunk] = num_bytes
        return chunk

    def destroy(self, chunk: Chunk) -> None:
        """See `MemoryDriver`."""
        del self._chunks[chunk]

    def map(self, address: int, chunk: Chunk, num_bytes: int, *, is_sparse: bool = False) -> None:
        """See `MemoryDriver`."""
        assert self._chunks[chunk] == num_bytes, "a chunk is mapped as a whole"
        try:
            self._call("mprotect", address, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as error:  # the kernel commits no more, or has no room for the mapping itself
            raise DeviceOutOfMemory(num_bytes, self.free_bytes()) from error
        advice = mmap.MADV_NOHUGEPAGE if is_sparse else mmap.MADV_HUGEPAGE
        self._libc.madvise(address, num_bytes, advice)  # fails where the kernel has no huge pages: nothing to advise
        self._mapped[address] = num_bytes

    def unmap(self, address: int, num_bytes: int) -> None:
        """See `MemoryDriver`."""
        self._call("madvise", address, num_bytes, mmap.MADV_DONTNEED)
        self._call("mprotect", address, num_bytes, _PROT_NONE)
        del self._mapped[address]

    def tensor(self, address: int, num_bytes: int) -> torch.Tensor:
        """See `MemoryDriver`."""
        import torch

        return torch.frombuffer((ctypes.c_uint8 * num_bytes).from_address(address), dtype=torch.uint8)

    def _resident_bytes(self) -> int:
        """Return how much of what is mapped the kernel has put memory behind."""
        return sum(self._count_pages(address, num_bytes) for address, num_bytes in self._mapped.items()) * mmap.PAGESIZE

    def _count_pages(self, address: int, num_bytes: int) -> int:
        pages = ctypes.create_string_buffer(num_bytes // mmap.PAGESIZE)
        if self._libc.mincore(address, num_bytes, pages) != 0:
            raise _os_error(f"mincore of {num_bytes} bytes")
        return pages.raw.count(_IS_RESIDENT)

    def _call(self, name: str, *arguments: int) -> None:
        if getattr(self._libc, name)(*arguments) != 0:
            raise _os_error(f"{name}{arguments}")


def _os_error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")
