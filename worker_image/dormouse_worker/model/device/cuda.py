"""A GPU as a device: its memory in arenas, pinned host memory beside it, copies on a stream of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from dormouse_worker.host import Host
from dormouse_worker.model.device.cuda_calls import CudaCalls, open_cuda
from dormouse_worker.model.device.cuda_driver import CudaDriver
from dormouse_worker.model.device.host_driver import HostDriver
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
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's

    def __repr__(self) -> str:
        return f"StreamQueue({self._stream!r})"

    def open(self) -> AbstractContextManager[object]:
        """See `CopyQueue`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)

    def wait(self) -> None:
        """See `CopyQueue`. Waits for this stream only: whatever else the device computes goes on."""
        self._done.record(self._stream)
        self._done.synchronize()


class CudaDevice:
    """Implements `Device`."""

    def __init__(self, memory: CudaDriver, copies: PinnedDriver, queue: CopyQueue) -> None:
        """See `open_cuda_device` for how they are made."""
        self.memory, self.copies, self._queue = memory, copies, queue
        self.name = memory.uuid
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

    def synchronize(self) -> None:
        """See `Device`."""
        torch.cuda.synchronize(self.torch_device)


def cut(num_bytes: int, seams: Sequence[int], slice_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of the slices of a copy: none passes a seam, none is larger than `slice_bytes`."""
    bounds = [0, *seams, num_bytes]
    for begin, end in itertools.pairwise(bounds):
        for start in range(begin, end, slice_bytes):
            yield start, min(end, start + slice_bytes)


def open_cuda_device(host: Host, ordinal: int = 0, open_calls: Callable[[], CudaCalls] = open_cuda) -> CudaDevice:
    """Make the context of one GPU and return it. Raises InvalidSettings where there is none.

    The context is made by the driver's retain; torch then finds it, so that both speak of the same memory.
    """
    calls = open_calls()
    memory = CudaDriver(calls, ordinal)
    memory.make_current()
    device = torch.device("cuda", ordinal)
    torch.cuda.set_device(device)
    torch.empty(1, device=device)
    return CudaDevice(memory, PinnedDriver(calls, memory, HostDriver(host.available_bytes)), StreamQueue(device))
