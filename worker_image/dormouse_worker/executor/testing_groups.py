"""A group of ranks in one process, for tests: real workers on the CPU, one thread for each while it works."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.common.grammar import Grammar
from dormouse_worker.engine.batch import Batch, ModelOutput, SampledToken
from dormouse_worker.engine.executor import SleepReport, WakeReport
from dormouse_worker.engine.grammars import Preparation, Prepared
from dormouse_worker.executor.testing import make_settings
from dormouse_worker.executor.worker.cpu_worker import CpuWorker
from dormouse_worker.executor.worker.rank_worker import RankWorker
from dormouse_worker.model.parallel.testing import FakeGroup


class FakeGroupExecutor:
    """Implements `StagedExecutor`: the same batches for all ranks, in one order, and the sampled tokens for all.

    Each rank goes through its batches by itself, so that a stage begins the next one while another is at the last.
    Loading is one after the other, for transformers changes settings of the whole process meanwhile.
    """

    def __init__(
        self,
        directory: Path,
        tensor: int,
        pipeline: int,
        make_worker: Callable[..., RankWorker] = CpuWorker,
        **settings: Any,
    ) -> None:
        """`make_worker` takes settings, a rank and, by name, its communicator."""
        self.group = FakeGroup(tensor, pipeline)
        sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
        self.settings = make_settings(directory, **sizes, **settings)
        self.workers = [
            make_worker(self.settings, rank, communicator=communicator)
            for rank, communicator in enumerate(self.group.ranks)
        ]
        self._lines = [ThreadPoolExecutor(1) for _ in self.workers]
        self._untold: list[SampledToken] = []
        for worker in self.workers:
            worker.init_device()
            worker.load_model()

    def __repr__(self) -> str:
        return f"FakeGroupExecutor({self.workers!r})"

    def layer_windows(self) -> tuple[int | None, ...]:
        """Return what all ranks must agree on."""
        (windows,) = {worker.layer_windows() for worker in self.workers}
        return windows

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """See `Executor`."""
        self._untold = []
        self.group.run(lambda rank: self.workers[rank].initialize_cache(num_gpu_blocks, num_cpu_blocks))

    def prepare_grammar(self, grammar: Grammar) -> Preparation:
        """See `Executor`."""
        del grammar
        return Prepared()

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `Executor`."""
        return self.submit(batch)()

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """See `StagedExecutor`."""
        told, self._untold = self._untold, []
        steps = [line.submit(self._step, rank, batch, told) for rank, line in enumerate(self._lines)]
        return partial(self._collect, steps)

    def runs_ahead(self) -> bool:
        """See `StagedExecutor`."""
        return False

    def _step(self, rank: int, batch: Batch, told: list[SampledToken]) -> ModelOutput:
        try:
            self.workers[rank].append_sampled(told)
            return self.workers[rank].execute_model(batch)
        except BaseException:
            self.group.break_up()
            raise

    def _collect(self, steps: Sequence[Future[ModelOutput]]) -> ModelOutput:
        outputs = [step.result() for step in steps]
        (sampling,) = (worker.rank for worker in self.workers if worker.layout.samples)
        assert all(output == ModelOutput([]) for rank, output in enumerate(outputs) if rank != sampling), outputs
        self._untold += outputs[sampling].sampled
        return outputs[sampling]

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int] = ()) -> list[SleepReport]:
        """Put all ranks to sleep."""
        self._untold = []
        return self.group.run(lambda rank: self.workers[rank].sleep(level, tags, kept_blocks))

    def wake_up(self, tags: Collection[str]) -> list[WakeReport]:
        """Wake all ranks."""
        return self.group.run(lambda rank: self.workers[rank].wake_up(tags))

    def add_lora(self, path: Path) -> AdapterInfo:
        """Have all ranks load an adapter, which must be the same for each."""
        infos = [worker.add_lora(str(path)) for worker in self.workers]
        first, *_ = whole = [info for info in infos if info is not None]
        assert {info.digest for info in whole} == {first.digest}
        return msgspec.structs.replace(first, num_bytes=sum(info.num_bytes for info in whole))

    def save_sharded_state(self, directory: Path) -> None:
        """Let every rank save its part."""
        self.group.run(lambda rank: self.workers[rank].save_sharded_state(str(directory)))

    def shutdown(self) -> None:
        """End all ranks."""
        for line in self._lines:
            line.shutdown()
        for worker in self.workers:
            worker.shutdown()
