"""What the engine needs of whoever computes: one protocol for the step, a wider one for the commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dormouse_worker.engine.batch import Batch, ModelOutput
from dormouse_worker.ipc import MemoryReport, ModelInfo


class ModelExecutor(Protocol):
    """Runs forward passes, on whatever device."""

    def layer_windows(self) -> tuple[int | None, ...]:
        """Return the sliding window of each layer group of the loaded model; None = its layers see everything."""

    def execute_model(self, batch: Batch) -> ModelOutput:
        """Compute the batch; remember its sequences and what was sampled.

        Any exception fails the requests of this batch and no others; the next batch is a fresh one then.
        """


@dataclass(frozen=True, slots=True)
class SleepReport:
    """What a sleep gave back and what the process still holds, in bytes of resident memory."""

    freed_bytes: int
    residual_bytes: int


class Executor(ModelExecutor, Protocol):
    """The verbs of all workers of this rank group. Each may raise WorkerError; anything else is unexpected."""

    def init_device(self) -> None:
        """Import the heavy libraries, choose the device, take the memory baseline."""

    def load_model(self) -> None:
        """Load the weights."""

    def get_model_info(self) -> ModelInfo:
        """Describe the loaded model."""

    def convert_tokenizer(self) -> str:
        """Return the path of a tokenizer.json made for a model that has none, "" if there is no need or no way."""

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """Profile; return how many blocks fit on the device and in host memory."""

    def get_memory_report(self) -> MemoryReport | None:
        """Return what the last profile measured; None before the first."""

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """Allocate the cache and warm up; replaces a cache of another size."""

    def start_profile(self, directory: str) -> None:
        """Record every operation of every rank from now on. Raises WrongState if that is so already."""

    def stop_profile(self) -> str:
        """Write what was recorded; return the path of rank 0's trace. Raises WrongState if no profile runs."""

    def sleep(self, level: int) -> SleepReport:
        """Give weights and cache back. An unfinished profile is written first; so it is at `shutdown`."""

    def wake_up(self) -> None:
        """Bring weights and cache back and verify them. After an error nothing is held."""

    def check_health(self) -> None:
        """Raise if the worker can not compute."""

    def shutdown(self) -> None:
        """Free everything; the worker is not used again."""
