"""The worker on the CPU: device and host memory are one, so the resident memory of this process is what is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence

import torch

from dormouse_worker.engine.batch import Batch, ModelOutput
from dormouse_worker.engine.executor import SleepReport, WakeReport
from dormouse_worker.errors import InsufficientMemory, Internal, InvalidArgument
from dormouse_worker.executor.worker_base import WorkerBase
from dormouse_worker.host import Host, measure_peak, release_free_memory
from dormouse_worker.ipc import MemoryReport, ModelInfo
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.golden import GoldenTokens, record_golden, verify_golden
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loader import LoadedModel, load
from dormouse_worker.model.memory import choose_limit, make_report, require_fit, split_measurement
from dormouse_worker.model.profile import profile_batches
from dormouse_worker.model.runner import ModelRunner
from dormouse_worker.settings import EngineSettings


class CpuWorker(WorkerBase):
    """Owns the model, the cache and the recorded golden tokens of one rank."""

    def __init__(self, settings: EngineSettings, rank: int, host: Host | None = None) -> None:
        super().__init__(settings, rank)
        self._host = host or Host()
        self._device = torch.device("cpu")
        self._backend = SdpaBackend()
        self._baseline_bytes = 0
        self._model: LoadedModel | None = None
        self._runner: ModelRunner | None = None
        self._report: MemoryReport | None = None
        self._golden: GoldenTokens | None = None
        self._agreed = (0, 0)

    def __repr__(self) -> str:
        return f"CpuWorker(rank={self.rank}, model={'loaded' if self._model else 'none'}, runner={self._runner!r})"

    def init_device(self) -> None:
        """See `WorkerBase`."""
        torch.set_num_threads(self._host.num_threads(self.settings.threads))
        release_free_memory()
        self._baseline_bytes = self._host.resident_bytes()

    def load_model(self) -> None:
        """See `WorkerBase`."""
        self._model = load(self.settings, CpuDevice(self._host))

    def get_model_info(self) -> ModelInfo:
        """See `WorkerBase`."""
        return self._loaded().info

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """See `WorkerBase`."""
        started_s = time.monotonic()
        model, settings = self._loaded(), self.settings
        self._profile(first_only=True)  # libraries settle what they keep for ever
        release_free_memory()
        loaded_bytes = self._host.resident_bytes()
        with measure_peak(self._host) as peak:
            self._profile(first_only=False)
        release_free_memory()
        measured = split_measurement(
            weights_bytes=model.weights_bytes,
            baseline_bytes=self._baseline_bytes,
            loaded_bytes=loaded_bytes,
            peak_bytes=peak.resident_bytes,
            parent_bytes=self._host.resident_bytes(os.getppid()),
            seconds=time.monotonic() - started_s,
        )
        limit = choose_limit(settings, self._host.memory_limit_bytes(), self._host.memory_total_bytes())
        self._report = make_report(
            settings,
            limit,
            measured,
            block_bytes=model.cache_spec.block_bytes,
            max_model_len=model.max_model_len,
            rank=self.rank,
        )
        require_fit(self._report)
        return self._report.num_gpu_blocks, self._report.num_cpu_blocks

    def get_memory_report(self) -> MemoryReport | None:
        """See `WorkerBase`."""
        return self._report

    def layer_windows(self) -> tuple[int | None, ...]:
        """See `WorkerBase`."""
        return self._loaded().cache_spec.windows

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """See `WorkerBase`. The first call records the golden tokens, later ones verify them."""
        self._allocate(num_gpu_blocks, num_cpu_blocks)
        self._agreed = (num_gpu_blocks, num_cpu_blocks)
        if self._golden is None:
            self._golden = self._record_golden()
        else:
            verify_golden(self.execute_model, self._golden)

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `WorkerBase`."""
        assert self._runner is not None, "initialize_cache comes before execute_model"
        return self._runner.execute(batch)

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int] = ()) -> SleepReport:
        """See `WorkerBase`. Only level 2: there is one memory here, and all of it is given back."""
        del tags, kept_blocks
        if level != 2:
            raise InvalidArgument(f"level is {level}; level 1 comes with a later version; use 2")
        before_bytes = self._host.resident_bytes()
        self._drop()
        residual_bytes = self._host.resident_bytes()
        return SleepReport(max(0, before_bytes - residual_bytes), residual_bytes)

    def prepare_wake_up(self, tags: Collection[str]) -> int:
        """See `WorkerBase`."""
        del tags
        return 0

    def save_sharded_state(self, directory: str) -> None:
        """See `WorkerBase`."""
        raise InvalidArgument(directory)

    def wake_up(self, tags: Collection[str]) -> WakeReport:
        """See `WorkerBase`."""
        del tags
        if self._model is not None:
            return WakeReport({})
        try:
            self.load_model()
            self.initialize_cache(*self._agreed)
        except BaseException:
            self._drop()
            raise
        return WakeReport({})

    def check_health(self) -> None:
        """See `WorkerBase`. Computes one small sum, which fails if torch does."""
        total = float(torch.ones(8, device=self._device).sum())
        if total != 8:
            raise Internal(f"the device adds eight ones to {total}")

    def shutdown(self) -> None:
        """See `WorkerBase`."""
        self._drop()

    def _loaded(self) -> LoadedModel:
        assert self._model is not None, "load_model comes first, and no call reaches a sleeping worker"
        return self._model

    def _drop(self) -> None:
        self._runner = None
        if self._model is not None:
            self._model.weights.close()
        self._model = None
        release_free_memory()

    def _allocate(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        self._runner = None
        release_free_memory()
        spec = self._loaded().cache_spec
        try:
            self._runner = self._make_runner(num_gpu_blocks, num_cpu_blocks)
        except (RuntimeError, MemoryError) as error:
            raise InsufficientMemory(
                f"{num_gpu_blocks} + {num_cpu_blocks} blocks of {spec.block_bytes} bytes can not be allocated: {error}"
            ) from error

    def _make_runner(self, num_gpu_blocks: int, num_cpu_blocks: int) -> ModelRunner:
        model = self._loaded()
        cache, host_cache = (
            KVCache(model.cache_spec, count, self._device) for count in (num_gpu_blocks, num_cpu_blocks)
        )
        return ModelRunner(model, cache, host_cache, self._backend, max_num_seqs=self.settings.max_num_seqs)

    def _profile(self, *, first_only: bool) -> None:
        """Run the largest batches on a cache of one block, so that nothing but activations is added."""
        model, settings = self._loaded(), self.settings
        runner = self._make_runner(1, 0)
        batches = profile_batches(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=model.max_model_len,
            block_size=settings.block_size,
            num_groups=len(model.cache_spec.groups),
        )
        for batch in batches[-1:] if first_only else batches:
            runner.execute(batch)

    def _record_golden(self) -> GoldenTokens:
        model = self._loaded()
        return record_golden(
            self.execute_model,
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            block_size=self.settings.block_size,
            num_groups=len(model.cache_spec.groups),
        )
