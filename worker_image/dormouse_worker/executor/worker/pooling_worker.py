"""The worker of a model that makes vectors: one rank, whole texts, no cache. Sleep and wake are as everywhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from dormouse_worker.common.errors import Damaged, InvalidArgument
from dormouse_worker.common.host import Host, freeze_garbage_collector, thaw_garbage_collector
from dormouse_worker.common.ipc import ModelInfo, PoolingParams
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import Batch, ModelOutput, SampledToken
from dormouse_worker.engine.executor import SleepReport, WakeReport
from dormouse_worker.engine.pooling.batch import PooledSequence, PoolingBatch, PoolingOutput
from dormouse_worker.executor.worker.device_worker import DeviceWorker
from dormouse_worker.executor.worker.sleeper import Sleeper
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.memory.without_cache import report_without_cache, require_room
from dormouse_worker.model.pooling.golden import GoldenVectors, record_golden, verify_golden
from dormouse_worker.model.pooling.loader import LoadedPooler, load_pooler
from dormouse_worker.model.pooling.no_cache import NoCache
from dormouse_worker.model.sleep import SleepCycle
from dormouse_worker.model.stopwatch import Stopwatch


class Slumber:
    """What of the worker sleeps and wakes. Implements `sleeper.Sleepable`."""

    host_copy_bytes = 0  # beside the weights'

    def __init__(self, model: LoadedPooler, device: Device) -> None:
        self._cycle = SleepCycle([model.weights, NoCache()], device.memory.promised)

    def __repr__(self) -> str:
        return f"Slumber({self._cycle!r})"

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """See `Sleepable`."""
        return self._cycle.sleeping_tags

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int], watch: Stopwatch) -> None:
        """See `Sleepable`. Raises InvalidArgument for a block: there are none."""
        if kept_blocks:
            raise InvalidArgument(f"kept_blocks has {kept_blocks[0]}; a worker without a cache has no blocks")
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


class PoolingWorker(DeviceWorker):
    """Implements `WorkerBase`; a subclass says which device it is."""

    def __init__(self, settings: EngineSettings, rank: int, host: Host | None = None) -> None:
        super().__init__(settings, rank, host)
        self._model: LoadedPooler | None = None
        self._slumber: Slumber | None = None
        self._golden: GoldenVectors | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model.runner if self._model else 'no model'!r}, {self._slumber!r})"

    def init_device(self) -> None:
        """See `WorkerBase`."""
        self._take_device(Layout()).open()

    def load_model(self) -> None:
        """See `WorkerBase`."""
        self._model = load_pooler(self.settings, self.device)

    def get_model_info(self) -> ModelInfo:
        """See `WorkerBase`."""
        return self._loaded().info

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """See `WorkerBase`. No block is needed; the largest pass is measured all the same."""
        model, limit = self._loaded(), self.meter.limit()
        largest = largest_batch(self.settings, model.max_model_len)
        measured = self.meter.measure(
            model.weights_bytes,
            warm_up=lambda: self._run(PoolingBatch(largest.sequences[-1:])),
            peak=lambda: self._run(largest),
        )
        self._report = report_without_cache(
            self.settings, limit, measured, device=self.device.name, max_model_len=model.max_model_len
        )
        require_room(self._report, self.settings, is_limit_known=limit.is_known)
        return 0, 0

    def layer_windows(self) -> tuple[int | None, ...]:
        """See `WorkerBase`: no layer keeps anything."""
        return ()

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """See `WorkerBase`. There is none: the first call records the golden vectors, later ones verify them."""
        assert num_gpu_blocks == num_cpu_blocks == 0, "as was reported"
        self._slumber = Slumber(self._loaded(), self.device)
        self.verify()
        freeze_garbage_collector()

    def execute_pooling(self, batch: PoolingBatch) -> PoolingOutput:
        """Compute one batch; return a vector for each of its texts, in order."""
        return self._loaded().runner.execute(batch)

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `WorkerBase`. Nobody asks for tokens: the front refuses who does."""
        raise NotImplementedError(f"{len(batch.sequences)} sequences ask for tokens of a model that makes vectors")

    def append_sampled(self, tokens: Sequence[SampledToken]) -> None:
        """See `WorkerBase`: there is no other rank."""

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int] = ()) -> SleepReport:
        """See `WorkerBase`."""
        return self._sleeper().sleep(level, tags, kept_blocks)

    def prepare_wake_up(self, tags: Collection[str]) -> int:
        """See `WorkerBase`."""
        return self._sleeper().prepare(tags)

    def wake_up(self, tags: Collection[str]) -> WakeReport:
        """See `WorkerBase`."""
        try:
            return self._sleeper().wake(tags, None, self._verify)
        except Damaged:  # for good: hold nothing
            self.shutdown()
            raise

    def save_sharded_state(self, directory: str) -> None:
        """See `WorkerBase`. Raises InvalidArgument."""
        raise InvalidArgument(f"directory is {directory!r}; a model that makes vectors is read from its own files only")

    def verify(self) -> None:
        """See `WorkerBase`."""
        self._verify(Stopwatch())

    def shutdown(self) -> None:
        """See `WorkerBase`."""
        if self._slumber is not None:
            self._slumber.close()
        if self._model is not None:
            self._model.weights.close()
        self._model = self._slumber = self._golden = None
        thaw_garbage_collector()
        self._release_unused()

    def _verify(self, watch: Stopwatch) -> None:
        """Record the golden vectors the first time, verify them later. Raises Damaged, or why weights do not arrive."""
        model = self._loaded()
        with watch.phase("weights"):
            model.weights.arrive()
        if self._golden is None:
            self._golden = record_golden(
                self.execute_pooling, vocab_size=model.vocab_size, max_model_len=model.max_model_len
            )
            return
        with watch.phase("verify"):
            if self.device.capability is not None:  # they crossed a bus
                model.weights.check_integrity()
            verify_golden(self.execute_pooling, self._golden)

    def _run(self, batch: PoolingBatch) -> None:
        self.execute_pooling(batch)

    def _loaded(self) -> LoadedPooler:
        assert self._model is not None, "load_model comes first"
        return self._model

    def _sleeper(self) -> Sleeper:
        assert self._slumber is not None, "initialize_cache comes first"
        return Sleeper(self.device, self.meter, self._loaded().weights, self._slumber)


def largest_batch(settings: EngineSettings, max_model_len: int) -> PoolingBatch:
    """Return the batch whose peak counts: as many tokens as a pass may have, in texts as long as they may be."""
    lengths: list[int] = []
    rest = settings.max_num_batched_tokens
    while rest and len(lengths) < settings.max_num_seqs:
        lengths.append(min(rest, max_model_len))
        rest -= lengths[-1]
    return PoolingBatch(tuple(PooledSequence([0] * length, PoolingParams()) for length in lengths))
