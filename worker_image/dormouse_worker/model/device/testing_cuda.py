"""`cuda.bindings.driver` without a GPU: the same functions over host mappings, strict about sizes, order and leaks.

Types and enumerations are those of the real module, so that a misspelt name is found here; only what reaches the
driver is replaced.
"""

# ruff: noqa: N802  # the functions' names are the driver's

from __future__ import annotations

import importlib
import threading
from collections import Counter
from collections.abc import Sized
from types import SimpleNamespace
from typing import Any

import torch

from dormouse_worker.model.device.host_driver import HostDriver

GRANULARITY = 2 << 20
ORDINAL = 0
UUID = bytes(range(16))


class FakeCudaBindings:
    """Stands in for the module `cuda.bindings.driver` on a machine with one GPU.

    `fail_at` lets the n-th call of a function from now on (0 = the next) return a code; `take` is a neighbour.
    """

    def __init__(
        self, total_bytes: int = 1 << 40, *, capability: tuple[int, int] = (9, 0), has_rdma: bool = True
    ) -> None:
        self._real: Any = importlib.import_module("cuda.bindings.driver")
        self.total_bytes = total_bytes
        self.version = 13020
        self.neighbour_bytes = 0
        self.context_bytes = 0  # what the primary context takes once it is there
        self.calls: Counter[str] = Counter()
        self.has_context = False
        self._threads: set[int] = set()  # in which the context is current
        self._capability, self._has_rdma = capability, has_rdma
        self._mappings = HostDriver(lambda: 1 << 62)
        self._ranges: dict[int, int] = {}
        self._chunks: dict[int, int] = {}
        self._mapped: dict[int, tuple[int, int]] = {}  # address → bytes, handle
        self._accessible: dict[int, Any] = {}  # address → the mapping below it
        self._pinned: dict[int, int] = {}
        self._failures: dict[str, tuple[int, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        """Return types, enumerations and constants of the real module; never a function."""
        if name.startswith("cu"):
            raise AttributeError(f"the fake has no {name}")
        return getattr(self._real, name)

    def fail_at(self, name: str, index: int, code: str) -> None:
        """Let the call of this function that comes after `index` others return a code."""
        self._failures[name] = (self.calls[name] + index, getattr(self._real.CUresult, code))

    def take(self, num_bytes: int) -> None:
        """Let a neighbour allocate, or free with a negative number."""
        self.neighbour_bytes += num_bytes

    @property
    def is_current(self) -> bool:
        """Return whether this thread's calls are about the device."""
        return threading.get_ident() in self._threads

    @property
    def held(self) -> dict[str, int]:
        """Return how many ranges, chunks, mappings and pinned regions there are; all 0 = nothing leaks."""
        kinds: dict[str, Sized] = {"ranges": self._ranges, "chunks": self._chunks, "mapped": self._mapped}
        kinds["pinned"] = self._pinned
        return {name: len(items) for name, items in kinds.items()}

    def cuInit(self, flags: int) -> tuple[Any]:
        """Start the driver."""
        return self._done("cuInit", flags == 0)

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        """Return the CUDA release that the driver offers: 13020 is 13.2."""
        return (*self._done("cuDriverGetVersion", is_right=True), self.version)

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        """Return the device with this number."""
        return *self._done("cuDeviceGet", ordinal == ORDINAL), self._real.CUdevice(ordinal)

    def cuDeviceTotalMem(self, device: Any) -> tuple[Any, int]:
        """Return the device's memory."""
        return *self._done("cuDeviceTotalMem", int(device) == ORDINAL), self.total_bytes

    def cuDeviceGetUuid(self, device: Any) -> tuple[Any, Any]:
        """Return the device's name."""
        return *self._done("cuDeviceGetUuid", int(device) == ORDINAL), SimpleNamespace(bytes=UUID)

    def cuDeviceGetAttribute(self, attribute: Any, device: Any) -> tuple[Any, int]:
        """Return what the device can do."""
        names = self._real.CUdevice_attribute
        values = {
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: self._capability[0],
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: self._capability[1],
            names.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: int(self._has_rdma),
        }
        return *self._done("cuDeviceGetAttribute", attribute in values and int(device) == ORDINAL), values[attribute]

    def cuDevicePrimaryCtxRetain(self, device: Any) -> tuple[Any, Any]:
        """Make the context, or count one user more."""
        self.has_context = True
        return *self._done("cuDevicePrimaryCtxRetain", int(device) == ORDINAL), self._real.CUcontext(1)

    def cuDevicePrimaryCtxRelease(self, device: Any) -> tuple[Any]:
        """Count one user less."""
        is_right = self.has_context and int(device) == ORDINAL
        self.has_context = False
        self._threads.clear()
        return self._done("cuDevicePrimaryCtxRelease", is_right)

    def cuCtxSetCurrent(self, context: Any) -> tuple[Any]:
        """Let the calls of this thread be about a device."""
        is_right = self.has_context and int(context) == 1
        if is_right:
            self._threads.add(threading.get_ident())
        return self._done("cuCtxSetCurrent", is_right)

    def cuMemGetInfo(self) -> tuple[Any, int, int]:
        """Return what is free and how much there is."""
        return *self._done("cuMemGetInfo", self.is_current), self.free_bytes(), self.total_bytes

    def cuMemGetAllocationGranularity(self, properties: Any, option: Any) -> tuple[Any, int]:
        """Return the smallest unit."""
        minimum = self._real.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        is_right = option == minimum and self._is_ours(properties)
        return *self._done("cuMemGetAllocationGranularity", is_right), GRANULARITY

    def cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> tuple[Any, Any]:
        """Take addresses."""
        code = self._done("cuMemAddressReserve", (alignment, address, flags) == (GRANULARITY, 0, 0) and _is_whole(size))
        start = 0
        if code[0] == self._real.CUresult.CUDA_SUCCESS:
            try:
                start = self._mappings.reserve(size)
            except OSError:
                return self._real.CUresult.CUDA_ERROR_OUT_OF_MEMORY, self._real.CUdeviceptr(0)
            self._ranges[start] = size
        return *code, self._real.CUdeviceptr(start)

    def cuMemAddressFree(self, address: int, size: int) -> tuple[Any]:
        """Give a whole range back, with nothing mapped in it."""
        is_used = any(address <= start < address + size for start in self._mapped)
        is_right = self._ranges.get(address) == size and not is_used
        if is_right:
            self._mappings.release(address, self._ranges.pop(address))
        return self._done("cuMemAddressFree", is_right)

    def cuMemCreate(self, size: int, properties: Any, flags: int) -> tuple[Any, Any]:
        """Take physical memory."""
        results = self._real.CUresult
        (code,) = self._done("cuMemCreate", flags == 0 and _is_whole(size) and self._is_ours(properties))
        if code == results.CUDA_SUCCESS and size > self.free_bytes():
            code = results.CUDA_ERROR_OUT_OF_MEMORY
        handle = self.calls["cuMemCreate"]
        if code == results.CUDA_SUCCESS:
            self._chunks[handle] = size
        return code, self._real.CUmemGenericAllocationHandle(handle)

    def cuMemRelease(self, handle: Any) -> tuple[Any]:
        """Give physical memory back that is not mapped."""
        is_mapped = int(handle) in {mapped for _, mapped in self._mapped.values()}
        is_right = int(handle) in self._chunks and not is_mapped
        if is_right:
            del self._chunks[int(handle)]
        return self._done("cuMemRelease", is_right)

    def cuMemMap(self, address: int, size: int, offset: int, handle: Any, flags: int) -> tuple[Any]:
        """Put a chunk behind free addresses of one range."""
        is_inside = any(start <= address and address + size <= start + length for start, length in self._ranges.items())
        overlaps = any(
            start < address + size and address < start + length for start, (length, _) in self._mapped.items()
        )
        is_right = (offset, flags) == (0, 0) and is_inside and not overlaps and self._chunks.get(int(handle)) == size
        (code,) = self._done("cuMemMap", is_right)
        if code == self._real.CUresult.CUDA_SUCCESS:
            self._mapped[address] = (size, int(handle))
        return (code,)

    def cuMemSetAccess(self, address: int, size: int, access: list[Any], count: int) -> tuple[Any]:
        """Let the device touch what is mapped; before, doing so is fatal."""
        kinds, read_write = (
            self._real.CUmemLocationType,
            self._real.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        )
        is_right = (
            self._mapped.get(address, (0, 0))[0] == size
            and count == len(access) == 1
            and access[0].location.type == kinds.CU_MEM_LOCATION_TYPE_DEVICE
            and (access[0].location.id, access[0].flags) == (ORDINAL, read_write)
        )
        (code,) = self._done("cuMemSetAccess", is_right)
        if code == self._real.CUresult.CUDA_SUCCESS:
            chunk = self._mappings.create(size)
            self._mappings.map(address, chunk, size)
            self._mappings.tensor(address, size).fill_(0xFF)  # what nobody wrote is NaN
            self._accessible[address] = chunk
        return (code,)

    def cuMemUnmap(self, address: int, size: int) -> tuple[Any]:
        """Take a chunk away from its addresses."""
        is_right = self._mapped.get(address, (0, 0))[0] == size
        if is_right:
            del self._mapped[address]
            chunk = self._accessible.pop(address, None)
            if chunk is not None:
                self._mappings.unmap(address, size)
                self._mappings.destroy(chunk)
        return self._done("cuMemUnmap", is_right)

    def cuMemHostRegister(self, address: int, size: int, flags: int) -> tuple[Any]:
        """Pin host memory that is there."""
        is_right = self.is_current and flags == self._real.CU_MEMHOSTREGISTER_PORTABLE and address not in self._pinned
        (code,) = self._done("cuMemHostRegister", is_right)
        if code == self._real.CUresult.CUDA_SUCCESS:
            self._mappings.tensor(address, size)[::GRANULARITY] = 0  # pages must be there to be pinned
            self._pinned[address] = size
        return (code,)

    def cuMemHostUnregister(self, address: int) -> tuple[Any]:
        """Let host memory move again."""
        is_right = self.is_current and self._pinned.pop(address, None) is not None
        return self._done("cuMemHostUnregister", is_right)

    def free_bytes(self) -> int:
        """Return what is free, as NVML tells it without a context."""
        own_bytes = sum(self._chunks.values()) + self.context_bytes * self.has_context
        return max(0, self.total_bytes - self.neighbour_bytes - own_bytes)

    def _is_ours(self, properties: Any) -> bool:
        kinds, places = self._real.CUmemAllocationType, self._real.CUmemLocationType
        return bool(
            properties.type == kinds.CU_MEM_ALLOCATION_TYPE_PINNED
            and properties.location.type == places.CU_MEM_LOCATION_TYPE_DEVICE
            and properties.location.id == ORDINAL
            and bool(properties.allocFlags.gpuDirectRDMACapable) == self._has_rdma
        )

    def _done(self, name: str, is_right: object) -> tuple[Any]:
        """Count the call; return its code."""
        self.calls[name] += 1
        index, failure = self._failures.get(name, (-1, None))
        if index == self.calls[name] - 1:
            del self._failures[name]
            return (failure,)
        results = self._real.CUresult
        return (results.CUDA_SUCCESS if is_right else results.CUDA_ERROR_INVALID_VALUE,)


def view_host_memory(address: int, num_bytes: int, ordinal: int) -> torch.Tensor:
    """Return the tensor over what the fake calls device memory; takes the place of `view_device_memory`."""
    assert ordinal == ORDINAL
    return HostDriver(lambda: 0).tensor(address, num_bytes)


def _is_whole(size: int) -> bool:
    return size > 0 and size % GRANULARITY == 0
