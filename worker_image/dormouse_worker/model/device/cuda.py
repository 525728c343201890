"""A GPU as a device: its memory in arenas, pinned host memory beside it, copies on a stream of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

from dormouse_worker.common.host import Host
from dormouse_worker.model.device.accounting import (
    CONTEXT_BYTES,
    LIBRARIES_BYTES,
    MAX_LIBRARIES_BYTES,
    Change,
    measure_around,
)
from dormouse_worker.model.device.check import require_device
from dormouse_worker.model.device.cuda_calls import CudaCalls, open_cuda, require_capability, require_driver
from dormouse_worker.model.device.cuda_driver import CudaDriver, device_names
from dormouse_worker.model.device.host_driver import HostDriver
from dormouse_worker.model.device.nvml_memory import find_device
from dormouse_worker.model.device.pinned import PinnedDriver

SLICE_BYTES = 128 << 20  # large enough for the full rate; small enough that nothing waits long behind one


class CopyQueue(Protocol):
    """Where copies run beside the computation."""

    def open(self) -> AbstractContextManager[object]:
        """Order the copies of the block after all work given to the device so far, and start them at once."""

    def wait(self) -> None:
        """Return when everything in the queue is done. Raises what it raised."""


class StreamQueue:
    """Implements `CopyQueue` with a CUDA stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]  # torch's

    def __repr__(self) -> str:
        return f"StreamQueue({self._stream!r})"

    def open(self) -> AbstractContextManager[object]:
        """See `CopyQueue`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)

    def wait(self) -> None:
        """See `CopyQueue`. Waits for this stream only: whatever else the device computes goes on."""
        self._stream.record_event().synchronize()  # an event of its own: several threads may wait


class CudaDevice:
    """Implements `Device`."""

    has_copy_engine = True

    def __init__(
        self, memory: CudaDriver, copies: PinnedDriver, queue: CopyQueue, context: Change, *, name: str
    ) -> None:
        """See `open_cuda_device` for how they are made; `context` is what the context costs."""
        self.memory, self.copies, self._queue, self.context = memory, copies, queue, context
        self.name = name
        self.torch_device = torch.device("cuda", memory.ordinal)

    def __repr__(self) -> str:
        return f"CudaDevice({self.name}, {self.memory!r}, {self.copies!r})"

    @property
    def capability(self) -> tuple[int, int]:
        """See `Device`."""
        return self.memory.capability

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Device`."""
        host = target if target.device.type == "cpu" else source
        address = host.data_ptr()
        seams = [seam - address for seam in self.copies.seams(address, address + host.numel())]
        with self._queue.open():
            for start, end in cut(host.numel(), seams, SLICE_BYTES):
                target[start:end].copy_(source[start:end], non_blocking=True)
        self._queue.wait()

    def counting_on(self, num_bytes: int) -> AbstractContextManager[None]:
        """See `Device`: its arenas are not in host memory."""
        del num_bytes
        return nullcontext()

    def synchronize(self) -> None:
        """See `Device`."""
        torch.cuda.synchronize(self.torch_device)


def cut(num_bytes: int, seams: Sequence[int], slice_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of the slices of a copy: none passes a seam, none is larger than `slice_bytes`."""
    bounds = [0, *seams, num_bytes]
    for begin, end in itertools.pairwise(bounds):
        for start in range(begin, end, slice_bytes):
            yield start, min(end, start + slice_bytes)


def open_memory(calls: CudaCalls, ordinal: int, free_bytes: Callable[[], int] | None) -> tuple[CudaDriver, Change]:
    """Make the context of one GPU; return its memory, and what the context costs. Raises CudaError.

    It is made again until two makings cost the same (see `accounting`): nothing else holds it yet. `free_bytes` reads
    without a context, as only NVML does; without it the cost is a guess.
    """
    made: list[CudaDriver] = []

    def make() -> None:
        made.append(CudaDriver(calls, ordinal))

    if free_bytes is None:
        make()
        return made[-1], Change(CONTEXT_BYTES, is_certain=False)
    change = measure_around(free_bytes, make, lambda: made.pop().close())
    return made[-1], change if change.num_bytes >= 0 else Change(CONTEXT_BYTES, is_certain=False)


def open_cuda_device(
    host: Host, ordinal: int = 0, open_calls: Callable[[], CudaCalls] = open_cuda, *, expected: str = ""
) -> CudaDevice:
    """Return one GPU of those that this process sees, before anything else of CUDA has run in it.

    torch finds the context that is made here, so that both speak of the same memory. Raises InvalidSettings where there
    is no GPU, or driver and device are too old for this torch, and WrongDevice where it is not the expected one.
    """
    calls = open_calls()
    require_driver(calls, torch.version.cuda)
    found = find_device(device_names(calls, ordinal))
    require_device(found.name, expected)
    memory, context = open_memory(calls, ordinal, found.free_bytes)
    require_capability(memory.capability, torch.cuda.get_arch_list())
    memory.make_current()
    device = torch.device("cuda", ordinal)
    torch.cuda.set_device(device)
    libraries = measure_around(
        lambda: memory.free_bytes() + torch.cuda.memory_reserved(device), lambda: load_libraries(device)
    )
    copies = PinnedDriver(calls, memory, HostDriver(host.available_bytes))
    return CudaDevice(memory, copies, StreamQueue(device), with_libraries(context, libraries), name=found.name)


def load_libraries(device: torch.device) -> None:
    """Compute what has torch and cuBLAS load their code, a quarter of a GiB on Hopper, while nothing else goes on.

    Else it is loaded in the middle of loading the model, where nobody sees what it takes.
    """
    for dtype in (torch.float32, torch.float16):  # which every GPU multiplies
        ones = torch.ones(16, 16, dtype=dtype, device=device)
        torch.mm(ones, ones).sum()
    torch.cuda.synchronize(device)


def with_libraries(context: Change, libraries: Change) -> Change:
    """Return what both cost; libraries are guessed where a neighbour moved so that they cost what they can not."""
    is_known = 0 <= libraries.num_bytes <= MAX_LIBRARIES_BYTES
    num_bytes = libraries.num_bytes if is_known else LIBRARIES_BYTES
    return Change(context.num_bytes + num_bytes, context.is_certain and libraries.is_certain and is_known)
