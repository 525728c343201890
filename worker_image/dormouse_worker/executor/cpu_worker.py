"""The worker on the CPU: device and host memory are one, so the resident memory of this process is what is measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from dormouse_worker.engine.batch import Batch, ModelOutput
from dormouse_worker.engine.executor import SleepReport, WakeReport
from dormouse_worker.errors import InsufficientMemory, Internal, InvalidArgument
from dormouse_worker.executor.worker_base import WorkerBase
from dormouse_worker.host import Host, release_free_memory
from dormouse_worker.ipc import MemoryReport, ModelInfo
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.golden import GoldenTokens, compare_golden, generate_golden
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loader import LoadedModel, load
from dormouse_worker.model.memory import require_fit
from dormouse_worker.model.meters import ResidentMeter
from dormouse_worker.model.profile_run import ProfiledModel, ProfiledRank, profile_memory
from dormouse_worker.model.runner import ModelRunner
from dormouse_worker.settings import EngineSettings


class CpuWorker(WorkerBase):
    """Owns the model, the cache and the recorded golden tokens of one rank."""

    def __init__(self, settings: EngineSettings, rank: int, host: Host | None = None) -> None:
        super().__init__(settings, rank)
        self._host = host or Host()
        self._device = torch.device("cpu")
        self._backend = SdpaBackend()
        self._meter = ResidentMeter(self._host, settings)
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
        self._meter.open()

    def load_model(self) -> None:
        """See `WorkerBase`."""
        self._model = load(self.settings, self._device)

    def get_model_info(self) -> ModelInfo:
        """See `WorkerBase`."""
        return self._loaded().info

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """See `WorkerBase`."""
        model = self._loaded()
        self._report = profile_memory(
            self.settings,
            ProfiledRank(self.rank, self._device.type, torch.get_num_threads()),
            ProfiledModel(
                weights_bytes=model.weights_bytes,
                block_bytes=model.cache_spec.block_bytes,
                max_model_len=model.max_model_len,
                num_groups=len(model.cache_spec.groups),
            ),
            self._meter,
            self._run_profile,
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
        """See `WorkerBase`. The first call records the golden tokens, later ones compare them."""
        self._allocate(num_gpu_blocks, num_cpu_blocks)
        self._agreed = (num_gpu_blocks, num_cpu_blocks)
        if self._golden is None:
            self._golden = self._generate_golden()
        else:
            compare_golden(self._golden, self._generate_golden())

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
        self._model = None
        self._runner = None
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

    def _run_profile(self, batches: list[Batch]) -> None:
        """See `profile_memory`."""
        runner = self._make_runner(1, 0)
        for batch in batches:
            runner.execute(batch)

    def _generate_golden(self) -> GoldenTokens:
        model = self._loaded()
        return generate_golden(
            self.execute_model,
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            block_size=self.settings.block_size,
            num_groups=len(model.cache_spec.groups),
        )
