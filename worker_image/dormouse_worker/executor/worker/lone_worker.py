"""The worker of a task of one rank that makes no text of text: loading, sleep, wake and proof are the same for all.

A subclass says what is loaded, what is computed, what sleeps beside the weights, and what proves that it computes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from dormouse_worker.common.errors import InvalidArgument
from dormouse_worker.common.host import Host, freeze_garbage_collector, thaw_garbage_collector
from dormouse_worker.common.ipc import ModelInfo
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import Batch, ModelOutput, SampledToken
from dormouse_worker.engine.executor import WakeReport
from dormouse_worker.executor.worker.device_worker import DeviceWorker
from dormouse_worker.executor.worker.sleeper import Sleeper
from dormouse_worker.model.sleep import SleepCycle
from dormouse_worker.model.stopwatch import Stopwatch
from dormouse_worker.model.weights.store import WeightStore


class Loaded(Protocol):
    """A model on its device."""

    @property
    def weights(self) -> WeightStore:
        """Return who owns the memory of all of its tensors."""

    @property
    def info(self) -> ModelInfo:
        """Return what the front cannot read from files."""


class Slumber:
    """What of the worker sleeps and wakes. Implements `sleeper.Sleepable`."""

    host_copy_bytes = 0  # beside the weights'

    def __init__(self, cycle: SleepCycle) -> None:
        self._cycle = cycle

    def __repr__(self) -> str:
        return f"Slumber({self._cycle!r})"

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """See `Sleepable`."""
        return self._cycle.sleeping_tags

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int], watch: Stopwatch) -> None:
        """See `Sleepable`. Raises InvalidArgument for a block: none holds anything for later."""
        if kept_blocks:
            raise InvalidArgument(
                f"kept_blocks has {kept_blocks[0]}; a worker without cached prefixes has none to keep"
            )
        self._cycle.sleep(level, tags, watch)

    def prepare(self, tags: Collection[str]) -> int:
        """See `Sleepable`."""
        return self._cycle.prepare(tags)

    def wake(
        self, tags: Collection[str], agree: Callable[[], None], verify: Callable[[], None], watch: Stopwatch
    ) -> None:
        """See `Sleepable`."""

        def finish() -> None:
            agree()
            if not self.sleeping_tags:
                verify()

        self._cycle.wake(tags, finish, watch)

    def close(self) -> None:
        """Give reservations back."""
        self._cycle.cancel()


class LoneWorker(DeviceWorker):
    """Implements of `WorkerBase` all but profile and cache."""

    makes = "the model makes no text of text"  # for who asks for what it does not do

    def __init__(self, settings: EngineSettings, rank: int, host: Host | None = None) -> None:
        super().__init__(settings, rank, host)
        self._slumber: Slumber | None = None
        self._has_proof = False

    @abstractmethod
    def loaded(self) -> Loaded:
        """Return the model; there is one after `load_model`."""

    @abstractmethod
    def let_go(self) -> None:
        """Close the model, if there is one, and what is computed over it."""

    @abstractmethod
    def record(self) -> None:
        """Compute what proves later that the model still computes the same. Raises LogitsNotFinite."""

    @abstractmethod
    def repeat(self) -> None:
        """Compute it again. Raises GoldenTokensDiffer."""

    def init_device(self) -> None:
        """See `WorkerBase`."""
        self._take_device(Layout()).open()

    def get_model_info(self) -> ModelInfo:
        """See `WorkerBase`."""
        return self.loaded().info

    def layer_windows(self) -> tuple[int | None, ...]:
        """See `WorkerBase`: no layer keeps anything for the next request."""
        return ()

    def open_with(self, cycle: SleepCycle) -> None:
        """Let these parts sleep from now on, and record the proof, or repeat it where there is one."""
        self._slumber = Slumber(cycle)
        self.verify()
        freeze_garbage_collector()

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `WorkerBase`. Nobody asks for it: the front refuses who does."""
        raise NotImplementedError(f"{len(batch.sequences)} sequences ask for text, and {self.makes}")

    def append_sampled(self, tokens: Sequence[SampledToken]) -> None:
        """See `WorkerBase`: there is no other rank."""

    def wake_up(self, tags: Collection[str]) -> WakeReport:
        """See `WorkerBase`."""
        return self.wake_with(tags, None, self._verify)

    def save_sharded_state(self, directory: str) -> None:
        """See `WorkerBase`. Raises InvalidArgument."""
        raise InvalidArgument(f"directory is {directory!r}; {self.makes}, and is read from its own files only")

    def verify(self) -> None:
        """See `WorkerBase`."""
        self._verify(Stopwatch())

    def shutdown(self) -> None:
        """See `WorkerBase`."""
        if self._slumber is not None:
            self._slumber.close()
        self.let_go()
        self._slumber, self._has_proof = None, False
        thaw_garbage_collector()
        self._release_unused()

    def _verify(self, watch: Stopwatch) -> None:
        """Record the proof the first time, repeat it later. Raises Damaged, or why weights do not arrive."""
        weights = self.loaded().weights
        with watch.phase("weights"):
            weights.arrive()
        if not self._has_proof:
            self.record()
            self._has_proof = True
            return
        with watch.phase("verify"):
            if self.device.capability is not None:  # they crossed a bus
                weights.check_integrity()
            self.repeat()

    def sleeper(self) -> Sleeper:
        """See `SleepingWorker`."""
        assert self._slumber is not None, "initialize_cache comes first"
        return Sleeper(self.device, self.meter, self.loaded().weights, self._slumber)
