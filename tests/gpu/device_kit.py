"""What the programs need of a device, twice: a real GPU, and the fake device where there is none.

The one place that knows how our parts are put together; cases see `Kit` only.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.worker.classes import resolve_worker_class
from dormouse_worker.executor.worker.rank_worker import RankWorker
from dormouse_worker.executor.worker.wrapper import WORKER_CLASSES
from dormouse_worker.model.device.cuda import CudaDevice, open_cuda_device
from dormouse_worker.model.device.testing import FakeCudaDriver, FakeDevice
from dormouse_worker.model.graphs import CudaGraphMaker, GraphMaker
from tests.gpu.fake_worker import FakeGpuWorker, RerunMaker

MIB, GIB = 1 << 20, 1 << 30
NEIGHBOUR = Path(__file__).with_name("neighbour.py")


@dataclass(frozen=True)
class Scale:
    """How large the cases are: on a GPU large enough to time, else only large enough to be seen."""

    arena_bytes: int  # of the spike
    matrix_size: int
    dtype: torch.dtype
    model: dict[str, Any]  # of the sleep cases: overrides of a tiny Llama
    cache_bytes: int


GPU_SCALE = Scale(
    arena_bytes=4 * GIB,
    matrix_size=4096,
    dtype=torch.bfloat16,
    model={
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "initializer_range": 0.02,
        "max_position_embeddings": 2048,
    },
    cache_bytes=4 * GIB,
)
FAKE_SCALE = Scale(arena_bytes=32 * MIB, matrix_size=512, dtype=torch.float32, model={}, cache_bytes=8 * MIB)


class Neighbour(Protocol):
    """Somebody else on the device."""

    def take(self, num_bytes: int) -> None:
        """Allocate device memory. Raises RuntimeError if it is not there."""

    def give(self) -> None:
        """Free everything."""


class Kit(Protocol):
    """A device and what cases do with it."""

    @property
    def name(self) -> str:
        """Return what the table calls it."""

    @property
    def is_gpu(self) -> bool:
        """Return whether times and sizes mean anything."""

    @property
    def scale(self) -> Scale:
        """Return how large the cases are."""

    @property
    def device(self) -> Any:
        """Return a `Device` for cases without a worker."""

    def make_graph_maker(self) -> GraphMaker:
        """Return who records graphs, or does as if."""

    def neighbour(self) -> Any:
        """Return a context manager with a `Neighbour`."""

    def make_worker(self, directory: Path, **settings: Any) -> RankWorker:
        """Return a worker whose device is initialised."""

    @property
    def rank_settings(self) -> Mapping[str, Any]:
        """Return the settings of a rank that computes here."""

    def forbid_waits(self) -> Any:
        """Return a context manager in which a call raises that waits for all that the device does."""

    def pinned_bytes(self, worker: RankWorker) -> int:
        """Return the host memory that a worker's copies lie in."""

    def tidy(self) -> None:
        """Give back what libraries hold without using it."""


class GpuKit:
    """Implements `Kit` with the first GPU."""

    is_gpu = True
    scale = GPU_SCALE
    rank_settings: Mapping[str, Any] = MappingProxyType({"device": "cuda"})

    @cached_property
    def device(self) -> CudaDevice:
        """See `Kit`. Opened late: a worker that starts cold makes the context by itself."""
        return open_cuda_device(Host())

    @cached_property
    def name(self) -> str:
        """See `Kit`. Asked in another process: torch would begin to touch the device in this one."""
        program = shutil.which("nvidia-smi")
        if program is None:
            return "a GPU"
        command = [program, "--query-gpu=name", "--format=csv,noheader", "--id=0"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "a GPU"

    def make_graph_maker(self) -> GraphMaker:
        """See `Kit`."""
        return CudaGraphMaker()

    @contextmanager
    def neighbour(self) -> Iterator[Neighbour]:
        """See `Kit`."""
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, str(NEIGHBOUR)], stdin=pipe, stdout=pipe, text=True) as process:
            yield NeighbourProcess(process)
            assert process.stdin is not None
            process.stdin.close()

    def make_worker(self, directory: Path, **settings: Any) -> RankWorker:
        """See `Kit`."""
        worker_class = resolve_worker_class(WORKER_CLASSES["cuda"])
        assert issubclass(worker_class, RankWorker)
        worker = worker_class(EngineSettings(model=str(directory), device="cuda", **settings), 0)
        worker.init_device()
        return worker

    @contextmanager
    def forbid_waits(self) -> Iterator[None]:
        """See `Kit`."""
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def pinned_bytes(self, worker: RankWorker) -> int:
        """See `Kit`."""
        return int(worker.device.copies.pinned_bytes)  # type: ignore[union-attr]  # a CudaDevice's

    def tidy(self) -> None:
        """See `Kit`."""
        torch.cuda.empty_cache()


class NeighbourProcess:
    """Implements `Neighbour` with the program of `neighbour.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._expect_ok()  # its context takes memory too, which is not to be counted later

    def take(self, num_bytes: int) -> None:
        """See `Neighbour`."""
        self._tell(f"take {num_bytes}")

    def give(self) -> None:
        """See `Neighbour`."""
        self._tell("give")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        self._expect_ok()

    def _expect_ok(self) -> None:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if answer != "ok":
            raise RuntimeError(f"the neighbour says {answer or 'nothing and has ended'}")


class FakeKit:
    """Implements `Kit` with the fake device, whose work the CPU does."""

    name = "fake device"
    is_gpu = False
    scale = FAKE_SCALE
    rank_settings: Mapping[str, Any] = MappingProxyType({"worker_cls": "tests.gpu.fake_worker.FakeGpuWorker"})

    def __init__(self) -> None:
        self.device = FakeDevice(FakeCudaDriver(256 * MIB))

    def make_graph_maker(self) -> GraphMaker:
        """See `Kit`."""
        return RerunMaker()

    @contextmanager
    def neighbour(self) -> Iterator[Neighbour]:
        """See `Kit`."""
        neighbour = FakeNeighbour(self.device.memory)
        yield neighbour
        neighbour.give()

    def make_worker(self, directory: Path, **settings: Any) -> RankWorker:
        """See `Kit`. All workers share the device, as they do on a GPU."""
        worker = FakeGpuWorker(EngineSettings(model=str(directory), threads=1, **settings), 0, device=self.device)
        worker.init_device()
        return worker

    def forbid_waits(self) -> AbstractContextManager[None]:
        """See `Kit`. There is nothing to wait for."""
        return nullcontext()

    def pinned_bytes(self, worker: RankWorker) -> int:
        """See `Kit`."""
        return sum(worker.device.copies._chunks.values())  # type: ignore[union-attr]  # a FakeDevice's

    def tidy(self) -> None:
        """See `Kit`."""


class FakeNeighbour:
    """Implements `Neighbour` on a driver that knows no other process."""

    def __init__(self, driver: FakeCudaDriver) -> None:
        self._driver = driver
        self._held_bytes = 0

    def take(self, num_bytes: int) -> None:
        """See `Neighbour`."""
        self._driver.take(num_bytes)
        self._held_bytes += num_bytes

    def give(self) -> None:
        """See `Neighbour`."""
        self._driver.give(self._held_bytes)
        self._held_bytes = 0


def find_kit() -> Kit:
    """Return the GPU's kit if there is one."""
    return GpuKit() if torch.cuda.is_available() else FakeKit()
