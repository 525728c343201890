"""One GPU's memory with the verbs of its own driver: virtual memory management through `cuda.bindings`."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from dormouse_worker.model.device.cuda_calls import CudaCalls
from dormouse_worker.model.device.driver import CHUNK_BYTES, Chunk, seen_free

View = Callable[[int, int, int], torch.Tensor]  # address, bytes, ordinal → uint8 [bytes]


class CudaDriver:
    """Implements `MemoryDriver`. Holds the device's primary context, the one that torch computes in, until `close`.

    Addresses are reserved without memory, chunks created without an address; a chunk that is mapped can be touched
    only after access to it was granted. cuMemGetInfo and pinning need a context, which is current per thread: it is
    made so before, whichever thread asks.
    """

    chunk_bytes = CHUNK_BYTES
    gives_zeros = False

    def __init__(self, calls: CudaCalls, ordinal: int, view: View | None = None) -> None:
        """Make the primary context and keep it. Raises CudaError.

        `view` makes the tensor over an address; None = torch does.
        """
        self._calls, self._view = calls, view or view_device_memory
        self.ordinal = ordinal
        self._device = calls.call("cuDeviceGet", ordinal)
        self._context = calls.call("cuDevicePrimaryCtxRetain", self._device)
        self._properties = self._make_properties()
        options = calls.bindings.CUmemAllocationGranularity_flags
        self.granularity = int(
            calls.call("cuMemGetAllocationGranularity", self._properties, options.CU_MEM_ALLOC_GRANULARITY_MINIMUM)
        )
        self._chunks: dict[Chunk, tuple[Any, int]] = {}  # each with the driver's handle and its bytes

    def __repr__(self) -> str:
        return f"CudaDriver({self.ordinal}, {len(self._chunks)} chunks, {self.used_bytes} bytes)"

    @property
    def used_bytes(self) -> int:
        """Return the physical memory that chunks hold: known, not measured."""
        return sum(num_bytes for _, num_bytes in self._chunks.values())

    @property
    def total_bytes(self) -> int:
        """Return the device's memory."""
        return int(self._calls.call("cuDeviceTotalMem", self._device))

    @property
    def capability(self) -> tuple[int, int]:
        """Return the compute capability, major and minor."""
        names = ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR")
        major, minor = (self._attribute(name) for name in names)
        return major, minor

    def make_current(self) -> None:
        """Let this thread's calls be about this device."""
        self._calls.call("cuCtxSetCurrent", self._context)

    def free_bytes(self) -> int:
        """See `MemoryDriver`."""
        self.make_current()
        free_bytes, _ = self._calls.call("cuMemGetInfo")
        return int(free_bytes)

    def promised(self, num_bytes: int) -> AbstractContextManager[None]:
        """See `MemoryDriver`."""
        return seen_free(self, num_bytes)

    def reserve(self, num_bytes: int) -> int:
        """See `MemoryDriver`. A lack of addresses is no lack of memory: it is a CudaError, which is an OSError."""
        return int(self._calls.call("cuMemAddressReserve", num_bytes, self.granularity, 0, 0))

    def release(self, address: int, num_bytes: int) -> None:
        """See `MemoryDriver`."""
        self._calls.call("cuMemAddressFree", address, num_bytes)

    def create(self, num_bytes: int) -> Chunk:
        """See `MemoryDriver`."""
        self.make_current()
        handle = self._calls.call("cuMemCreate", num_bytes, self._properties, 0, wanted_bytes=num_bytes)
        chunk = Chunk(int(handle))
        self._chunks[chunk] = (handle, num_bytes)
        return chunk

    def destroy(self, chunk: Chunk) -> None:
        """See `MemoryDriver`."""
        handle, _ = self._chunks[chunk]
        self._calls.call("cuMemRelease", handle)
        del self._chunks[chunk]

    def map(self, address: int, chunk: Chunk, num_bytes: int, *, is_sparse: bool = False) -> None:
        """See `MemoryDriver`."""
        del is_sparse  # a device's memory is there as soon as it is mapped
        handle, chunk_bytes = self._chunks[chunk]
        assert chunk_bytes == num_bytes, "a chunk is mapped as a whole"
        self.make_current()
        self._calls.call("cuMemMap", address, num_bytes, 0, handle, 0, wanted_bytes=num_bytes)
        try:
            self._calls.call("cuMemSetAccess", address, num_bytes, [self._access()], 1, wanted_bytes=num_bytes)
        except BaseException:
            self._calls.call("cuMemUnmap", address, num_bytes)
            raise

    def unmap(self, address: int, num_bytes: int) -> None:
        """See `MemoryDriver`."""
        self._calls.call("cuMemUnmap", address, num_bytes)

    def tensor(self, address: int, num_bytes: int) -> torch.Tensor:
        """See `MemoryDriver`."""
        return self._view(address, num_bytes, self.ordinal)

    def close(self) -> None:
        """Give the context back; torch may hold it still. No chunk may be left."""
        assert not self._chunks, f"{self!r} is closed with memory held"
        self._calls.call("cuDevicePrimaryCtxRelease", self._device)

    def _attribute(self, name: str) -> int:
        return int(
            self._calls.call(
                "cuDeviceGetAttribute", getattr(self._calls.bindings.CUdevice_attribute, name), self._device
            )
        )

    def _make_properties(self) -> Any:
        bindings = self._calls.bindings
        properties = bindings.CUmemAllocationProp()
        properties.type = bindings.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = bindings.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self.ordinal
        if self._attribute("CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"):
            properties.allocFlags.gpuDirectRDMACapable = 1  # an error on devices without it
        return properties

    def _access(self) -> Any:
        bindings = self._calls.bindings
        access = bindings.CUmemAccessDesc()
        access.location.type = bindings.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self.ordinal
        access.flags = bindings.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return access


def device_names(calls: CudaCalls, ordinal: int) -> tuple[str, str]:
    """Return how nvidia-smi writes a device's name if it is a whole GPU, and if it is a MIG slice; makes no context.

    CUDA tells the id of either, and not which of them it is.
    """
    value = uuid.UUID(bytes=bytes(calls.call("cuDeviceGetUuid", calls.call("cuDeviceGet", ordinal)).bytes))
    return f"GPU-{value}", f"MIG-{value}"


class DevicePointer:
    """Device memory as numpy, numba and torch pass it to each other; torch borrows, and frees nothing."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),  # False = writable
            "shape": (num_bytes,),
            "typestr": "|u1",
            "version": 2,
        }


def view_device_memory(address: int, num_bytes: int, ordinal: int) -> torch.Tensor:
    """Return a uint8 tensor [num_bytes] over device memory. torch asks the driver whose address it is."""
    return torch.as_tensor(DevicePointer(address, num_bytes), device=torch.device("cuda", ordinal))
