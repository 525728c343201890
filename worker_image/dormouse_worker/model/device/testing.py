"""A device that is not there: limited memory, failures on command, and real forward passes on what it gives."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt
import torch

from dormouse_worker.common.host import Host
from dormouse_worker.model.device.driver import CHUNK_BYTES, Chunk, DeviceOutOfMemory, MemoryDriver, seen_free
from dormouse_worker.model.device.host_driver import HostDriver
from dormouse_worker.model.device.stand_in import copy_bytes

VERBS = ("create", "map")  # those that may fail, in the driver's contract


class FakeCudaDriver:
    """Implements `MemoryDriver` over host mappings of its own, apart from the memory that torch takes.

    `fail_at` makes the n-th call of a verb from now on (0 = the next) raise once, as a device does whose memory
    somebody else took in that instant. `take` and `give` are that somebody. With `is_dirty` new memory holds NaNs,
    as a GPU's may: whoever reads what nobody wrote is found out.
    """

    granularity = HostDriver.granularity

    def __init__(self, total_bytes: int = 1 << 40, *, chunk_bytes: int = CHUNK_BYTES, is_dirty: bool = False) -> None:
        self.total_bytes = total_bytes
        self.chunk_bytes = chunk_bytes
        self.gives_zeros = not is_dirty
        self.neighbour_bytes = 0
        self.calls: Counter[str] = Counter()
        self._sizes: dict[Chunk, int] = {}
        self._mappings = HostDriver(lambda: 1 << 62)
        self._failures: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"FakeCudaDriver({self.used_bytes} + {self.neighbour_bytes} of {self.total_bytes} bytes used)"

    @property
    def used_bytes(self) -> int:
        """Return the physical memory that this process holds."""
        return sum(self._sizes.values())

    def take(self, num_bytes: int) -> None:
        """Let a neighbour allocate."""
        self.neighbour_bytes += num_bytes

    def give(self, num_bytes: int) -> None:
        """Let the neighbour free."""
        self.neighbour_bytes -= num_bytes

    def fail_at(self, verb: str, index: int) -> None:
        """Let the call of this verb fail that comes after `index` others."""
        assert verb in VERBS, verb
        self._failures[verb] = self.calls[verb] + index

    def disarm(self) -> bool:
        """Let nothing fail any more; return whether a failure was still to come."""
        was_armed = bool(self._failures)
        self._failures = {}
        return was_armed

    def free_bytes(self) -> int:
        """See `MemoryDriver`."""
        return max(0, self.total_bytes - self.neighbour_bytes - self.used_bytes)

    def promised(self, num_bytes: int) -> AbstractContextManager[None]:
        """See `MemoryDriver`."""
        return seen_free(self, num_bytes)

    def reserve(self, num_bytes: int) -> int:
        """See `MemoryDriver`."""
        return self._mappings.reserve(num_bytes)

    def release(self, address: int, num_bytes: int) -> None:
        """See `MemoryDriver`."""
        self._mappings.release(address, num_bytes)

    def create(self, num_bytes: int) -> Chunk:
        """See `MemoryDriver`."""
        free_bytes = self.free_bytes()
        if self._is_failing("create") or num_bytes > free_bytes:
            raise DeviceOutOfMemory(num_bytes, free_bytes)
        chunk = self._mappings.create(num_bytes)
        self._sizes[chunk] = num_bytes
        return chunk

    def destroy(self, chunk: Chunk) -> None:
        """See `MemoryDriver`."""
        del self._sizes[chunk]
        self._mappings.destroy(chunk)

    def map(self, address: int, chunk: Chunk, num_bytes: int, *, is_sparse: bool = False) -> None:
        """See `MemoryDriver`."""
        del is_sparse  # as on a device, all of it counts
        if self._is_failing("map"):
            raise DeviceOutOfMemory(num_bytes, self.free_bytes())
        self._mappings.map(address, chunk, num_bytes)
        if not self.gives_zeros:
            self._mappings.tensor(address, num_bytes).fill_(0xFF)

    def unmap(self, address: int, num_bytes: int) -> None:
        """See `MemoryDriver`."""
        self._mappings.unmap(address, num_bytes)

    def tensor(self, address: int, num_bytes: int) -> torch.Tensor:
        """See `MemoryDriver`."""
        return self._mappings.tensor(address, num_bytes)

    def _is_failing(self, verb: str) -> bool:
        self.calls[verb] += 1
        if self.calls[verb] - 1 != self._failures.get(verb):
            return False
        del self._failures[verb]
        return True


class FakeDevice:
    """Implements `Device` on a `FakeCudaDriver`: what CUDA does with its own memory, done by the CPU.

    The host memory for copies may be a fake driver too, so that it can be short or fail. `fail_copy_at` makes the n-th
    copy from now on (0 = the next) raise once.
    """

    has_copy_engine = False  # the processor copies; tests may say that it does so beside the computation
    name = "fake"
    torch_device = torch.device("cpu")
    capability = None

    def __init__(
        self, driver: FakeCudaDriver | None = None, host: Host | None = None, copies: MemoryDriver | None = None
    ) -> None:
        self.memory = driver or FakeCudaDriver()
        self.copies = copies or HostDriver((host or Host()).available_bytes)
        self._num_copies = 0
        self._failing_copy = -1
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"FakeDevice({self.memory!r}, {self.copies!r})"

    def fail_copy_at(self, index: int) -> None:
        """Let the copy fail that comes after `index` others."""
        self._failing_copy = self._num_copies + index

    def disarm(self) -> bool:
        """Let no copy fail any more; return whether one was still to fail."""
        was_armed = self._failing_copy >= self._num_copies
        self._failing_copy = -1
        return was_armed

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Device`."""
        with self._lock:
            number, self._num_copies = self._num_copies, self._num_copies + 1
        if number == self._failing_copy:
            raise RuntimeError(f"the device did not copy {len(source)} bytes")
        copy_bytes(target, source)

    def counting_on(self, num_bytes: int) -> AbstractContextManager[None]:
        """See `Device`: its arenas are not in host memory."""
        del num_bytes
        return nullcontext()

    def synchronize(self) -> None:
        """See `Device`: nothing is ever under way."""


class FakeTokenCopy:
    """Implements `TokenCopy`: what comes is what the tokens were when it was made; says whether somebody waited."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self._tokens = tokens.clone()
        self.is_awaited = False

    def wait(self) -> npt.NDArray[np.int64]:
        """See `TokenCopy`."""
        self.is_awaited = True
        tokens: npt.NDArray[np.int64] = self._tokens.numpy()
        return tokens
