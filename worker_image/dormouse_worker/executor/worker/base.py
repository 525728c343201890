"""What every worker can do, on any hardware. The verbs and their order are those of vLLM's workers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import ClassVar

from dormouse_worker.common.adapters import AdapterInfo, AdapterList
from dormouse_worker.common.errors import Damaged, InvalidSettings
from dormouse_worker.common.grammar import Grammar, GrammarRefused
from dormouse_worker.common.ipc import MemoryReport, ModelInfo
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import Batch, ModelOutput, SampledToken
from dormouse_worker.engine.executor import SleepReport, WakeReport
from dormouse_worker.engine.grammars import Preparation
from dormouse_worker.engine.keeping import StoredCache
from dormouse_worker.executor.worker.trace_profiler import TraceProfiler


class WorkerBase(ABC):
    """One rank's share of the model.

    Order: `init_device`, `load_model`, `determine_num_available_blocks`, `initialize_cache`, then `execute_model` any
    number of times, with `sleep` and `wake_up` in pairs between. Methods raise `WorkerError` for what a user can mend.
    """

    heads: ClassVar[frozenset[str]] = frozenset()  # by which it drafts, of `settings.HEADS`
    settings: EngineSettings
    rank: int

    def __init__(self, settings: EngineSettings, rank: int) -> None:
        self.settings = settings
        self.rank = rank
        self._profiler = TraceProfiler(rank, settings.device)

    @abstractmethod
    def init_device(self) -> None:
        """Choose the device and take the memory baseline, before anything is loaded."""

    @abstractmethod
    def load_model(self) -> None:
        """Load the weights. Raises ModelNotFound, ModelInvalid, CustomCodeRefused, PickleRefused, InvalidSettings."""

    @abstractmethod
    def get_model_info(self) -> ModelInfo:
        """Describe the loaded model."""

    @abstractmethod
    def determine_num_available_blocks(self) -> tuple[int, int]:
        """Profile the largest batch; return the blocks that fit on the device and in host memory.

        Raises InsufficientMemory or MaxModelLenTooLarge; the report is there even then.
        """

    @abstractmethod
    def get_memory_report(self) -> MemoryReport | None:
        """Return what the last profile measured; None before the first."""

    @abstractmethod
    def layer_windows(self) -> tuple[int | None, ...]:
        """Return the sliding window of each layer group; None = its layers see everything."""

    @abstractmethod
    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """Allocate the cache, in place of a present one, and warm up. Raises InsufficientMemory with nothing held."""

    def prepare_grammar(self, grammar: Grammar) -> Preparation:
        """See `Executor.prepare_grammar`. Who samples in a way of its own has to bind sequences itself."""
        del grammar
        raise GrammarRefused(f"{type(self).__name__} does not bind what it samples")

    @abstractmethod
    def execute_model(self, batch: Batch) -> ModelOutput:
        """Compute one batch; return one token per sequence that samples, in order.

        In a group all ranks compute the same batch, and those that do not sample return nothing.
        """

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """Begin with a batch; return who waits for its output. Batches are begun, and waited for, in their order.

        Called in place of `execute_model` where the worker `runs_ahead`.
        """
        output = self.execute_model(batch)
        return lambda: output

    def runs_ahead(self) -> bool:
        """Return whether `submit` returns while the device computes, and may be called again before the output."""
        return False

    @abstractmethod
    def append_sampled(self, tokens: Sequence[SampledToken]) -> None:
        """Note tokens of an earlier batch; called on every rank of a group, before a batch that goes on from them.

        A rank that is alone knows what it sampled. Tokens of sequences that were released since are ignored.
        """

    @abstractmethod
    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int] = ()) -> SleepReport:
        """See `Executor.sleep`."""

    @abstractmethod
    def prepare_wake_up(self, tags: Collection[str]) -> int:
        """See `Executor.prepare_wake_up`."""

    @abstractmethod
    def wake_up(self, tags: Collection[str]) -> WakeReport:
        """See `Executor.wake_up`; awake already = nothing happens."""

    def undo_sleep(self, tags: Collection[str]) -> None:
        """Wake what has just been put to sleep, because another rank of the group could not.

        One that verifies by computing together with the other ranks must not do so here: not all of them take part.
        """
        self.wake_up(tags)

    def add_lora(self, path: str, digest: str = "", seconds: float = math.inf) -> AdapterInfo | None:
        """See `Executor.add_lora`."""
        del digest, seconds
        raise InvalidSettings(f"{path}: {type(self).__name__} computes with no adapters")

    def remove_lora(self, digest: str) -> None:
        """See `Executor.remove_lora`."""
        del digest  # there are none

    def list_loras(self) -> AdapterList:
        """See `Executor.list_loras`."""
        return AdapterList([])

    def stored_cache(self) -> StoredCache:
        """See `StoringExecutor.stored_cache`."""
        raise InvalidSettings(f"kv_store_dir is set, and {type(self).__name__} keeps no blocks: leave it empty")

    @abstractmethod
    def save_sharded_state(self, directory: str) -> None:
        """See `Executor.save_sharded_state`."""

    def verify(self) -> None:
        """See `Executor.verify`. Who recorded no golden tokens cannot prove that it computes."""
        raise Damaged(f"{type(self).__name__} has no golden tokens to repeat")

    @abstractmethod
    def check_health(self) -> None:
        """Raise if this worker cannot compute."""

    @abstractmethod
    def shutdown(self) -> None:
        """Free everything."""

    def start_profile(self, directory: str) -> None:
        """Record every operation from now on. Raises WrongState if that is so already, InvalidArgument."""
        self._profiler.start(Path(directory))

    def stop_profile(self) -> str:
        """Write the trace; return its path. Raises WrongState if no profile runs, ProfileNotWritten."""
        return str(self._profiler.stop())

    def end_profile(self) -> None:
        """Write an unfinished profile's trace, if there is one; raises nothing."""
        self._profiler.end()
