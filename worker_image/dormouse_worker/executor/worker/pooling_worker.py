"""The worker of a model that makes vectors: one rank, whole texts, no cache."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import PoolingParams
from dormouse_worker.engine.pooling.batch import PooledSequence, PoolingBatch, PoolingOutput
from dormouse_worker.engine.pooling.executor import PassUnderWay
from dormouse_worker.executor.worker.lone_worker import Loaded, LoneWorker
from dormouse_worker.model.memory.without_cache import report_without_cache, require_room
from dormouse_worker.model.pooling.golden import GoldenVectors, record_golden, verify_golden
from dormouse_worker.model.pooling.no_cache import NoCache
from dormouse_worker.model.sleep import SleepCycle


class Runner(Protocol):
    """Computes passes of one model."""

    def begin(self, batch: PoolingBatch) -> PassUnderWay:
        """Return a pass over the batch of which nothing is computed yet."""


class Pooler(Loaded, Protocol):
    """A model on its device, ready for passes over whole texts."""

    @property
    def runner(self) -> Runner:
        """Return who computes passes."""

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of all weights."""

    @property
    def max_model_len(self) -> int:
        """Return the longest text in tokens."""

    @property
    def vocab_size(self) -> int:
        """Return how many tokens are known."""


class PoolingWorker(LoneWorker):
    """Implements `WorkerBase`; a subclass says which device it is, and how a model is loaded to it."""

    makes = "a model that makes vectors makes no text"

    def __init__(self, settings: EngineSettings, rank: int, host: Host | None = None) -> None:
        super().__init__(settings, rank, host)
        self._model: Pooler | None = None
        self._golden: GoldenVectors | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model.runner if self._model else 'no model'!r}, {self._slumber!r})"

    @abstractmethod
    def make_pooler(self) -> Pooler:
        """Load the settings' model. Raises ModelNotFound, …Invalid, …Changed, InvalidSettings, …Memory."""

    def load_model(self) -> None:
        """See `WorkerBase`."""
        self._model = self.make_pooler()

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """See `WorkerBase`. No block is needed; the largest pass is measured all the same."""
        model, limit = self.loaded(), self.meter.limit()
        largest = largest_batch(self.settings, model.max_model_len)
        longest = PoolingBatch(largest.sequences[:1])
        measured = self.meter.measure(
            model.weights_bytes,
            warm_up=lambda: self._compute(PoolingBatch(largest.sequences[-1:])),
            peak=lambda: self._run_above(longest, largest),
        )
        self._report = report_without_cache(
            self.settings, limit, measured, device=self.device.name, max_model_len=model.max_model_len
        )
        require_room(self._report, self.settings, is_limit_known=limit.is_known)
        return 0, 0

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """See `WorkerBase`. There is none: the first call records the golden vectors, later ones verify them."""
        assert num_gpu_blocks == num_cpu_blocks == 0, "as was reported"
        self.open_with(SleepCycle([self.loaded().weights, NoCache()], self.device.memory.promised))

    def begin_pooling(self, batch: PoolingBatch) -> PassUnderWay:
        """See `PoolingExecutor`."""
        return self.loaded().runner.begin(batch)

    def loaded(self) -> Pooler:
        """See `LoneWorker`."""
        assert self._model is not None, "load_model comes first"
        return self._model

    def let_go(self) -> None:
        """See `LoneWorker`."""
        if self._model is not None:
            self._model.weights.close()
        self._model = self._golden = None

    def record(self) -> None:
        """See `LoneWorker`."""
        model = self.loaded()
        self._golden = record_golden(self._compute, vocab_size=model.vocab_size, max_model_len=model.max_model_len)

    def repeat(self) -> None:
        """See `LoneWorker`."""
        assert self._golden is not None, "recorded before"
        verify_golden(self._compute, self._golden)

    def _compute(self, batch: PoolingBatch) -> PoolingOutput:
        return self.begin_pooling(batch).finish()

    def _run_above(self, longest: PoolingBatch, largest: PoolingBatch) -> None:
        """Run a pass while another one has stopped."""
        stopped = self.begin_pooling(largest)
        stopped.advance(0)
        self._compute(longest)
        stopped.finish()


def largest_batch(settings: EngineSettings, max_model_len: int) -> PoolingBatch:
    """Return the batch whose peak counts: as many tokens as a pass may have, in texts as long as they may be."""
    lengths: list[int] = []
    rest = settings.max_num_batched_tokens
    while rest and len(lengths) < settings.max_num_seqs:
        lengths.append(min(rest, max_model_len))
        rest -= lengths[-1]
    return PoolingBatch(tuple(PooledSequence([0] * length, PoolingParams()) for length in lengths))
