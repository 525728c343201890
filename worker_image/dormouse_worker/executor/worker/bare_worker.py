"""The worker that never imports torch: a model that our kernels compute from weights to tokens, on the processor."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.host import Host, freeze_garbage_collector, thaw_garbage_collector
from dormouse_worker.common.ipc import MemoryReport, ModelInfo
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import Batch, ModelOutput, SampledToken
from dormouse_worker.engine.executor import WakeReport
from dormouse_worker.engine.grammars import Grammars, Preparation
from dormouse_worker.engine.keeping import StoredCache
from dormouse_worker.executor.worker.allocation import Allocation
from dormouse_worker.executor.worker.draft_head import DraftHead
from dormouse_worker.executor.worker.golden_check import GoldenCheck
from dormouse_worker.executor.worker.kernel_worker import KernelWorker
from dormouse_worker.executor.worker.memory_errors import memory_errors
from dormouse_worker.executor.worker.sleeper import Sleeper
from dormouse_worker.model.bare.loader import BareModel, load
from dormouse_worker.model.bare.runner import BareRunner
from dormouse_worker.model.cache_blocks import CacheBlocks, make_realm
from dormouse_worker.model.device.arrays import ArrayDevice
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.memory.fit import require_fit
from dormouse_worker.model.memory.profile_run import ProfiledModel, ProfiledRank, profile_memory
from dormouse_worker.model.memory.resident import ResidentMeter
from dormouse_worker.model.stopwatch import Stopwatch
from dormouse_worker.model.weights.sharded import save_sharded_state


class BareWorker(KernelWorker):
    """Implements `WorkerBase` for one rank, and the models of which `why_torch` knows no reason."""

    heads = frozenset({"eagle"})

    def __init__(self, settings: EngineSettings, rank: int, host: Host | None = None) -> None:
        """Raises InvalidSettings where there are no kernels."""
        super().__init__(settings, rank)
        self._host = host or Host()
        self._device = ArrayDevice(self._host)
        self._meter = ResidentMeter(self._host, settings)
        self._grammars = Grammars(settings.model_path / "tokenizer.json")
        self._model: BareModel | None = None
        self._draft: DraftHead | None = None
        self._golden: GoldenCheck | None = None
        self._allocation: Allocation | None = None
        self._report: MemoryReport | None = None

    def __repr__(self) -> str:
        return f"BareWorker(model={'loaded' if self._model else 'none'}, {self._allocation!r})"

    def init_device(self) -> None:
        """See `WorkerBase`."""
        self._kernels.set_num_threads(self._host.num_threads(self.settings.threads))
        self._meter.open()

    def load_model(self) -> None:
        """See `WorkerBase`."""
        self._model = load(self.settings, self._device, self._kernels)
        if self.settings.speculation_method == "eagle":
            self._draft = DraftHead(self.settings, self._device, self._model, self._kernels)
            self._model = self._draft.target
        self._golden = GoldenCheck(self._model, self._device, self.settings.block_size)

    def get_model_info(self) -> ModelInfo:
        """See `WorkerBase`."""
        info = self._loaded().info
        if self._draft is None:
            return info
        return msgspec.structs.replace(info, compute_path=f"{info.compute_path}; {self._draft.words}")

    def layer_windows(self) -> tuple[int | None, ...]:
        """See `WorkerBase`."""
        return self._loaded().cache_spec.windows

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """See `WorkerBase`."""
        model = self._loaded()
        spec, draft_bytes = model.cache_spec, 0 if self._draft is None else self._draft.weights_bytes
        self._report = profile_memory(
            self.settings,
            ProfiledRank(self.rank, self._device.name, self._kernels.num_threads, model.layout),
            ProfiledModel(
                model.weights_bytes + draft_bytes,
                spec.block_bytes,
                model.max_model_len,
                len(spec.groups),
                samples_once=True,
                draft_bytes=draft_bytes,
            ),
            self._meter,
            self._run_profile,
        )
        require_fit(self._report, self.settings)
        return self._report.num_gpu_blocks, self._report.num_cpu_blocks

    def get_memory_report(self) -> MemoryReport | None:
        """See `WorkerBase`."""
        return self._report

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """See `WorkerBase`. The first call records the golden tokens, later ones verify them."""
        model = self._loaded()
        self._free_cache()
        spec, counts = model.cache_spec, (num_gpu_blocks, num_cpu_blocks)
        what = f"{num_gpu_blocks} + {num_cpu_blocks} blocks of {spec.block_bytes} bytes cannot be allocated"
        try:
            with memory_errors(what):
                self._allocation = Allocation(
                    self._device,
                    spec,
                    counts,
                    (model.weights,) if self._draft is None else (model.weights, self._draft.sleep_part),
                    self._make_runner,
                    self.settings,
                )
                self.verify()
        except BaseException:
            self._free_cache()
            raise
        freeze_garbage_collector()

    def prepare_grammar(self, grammar: Grammar) -> Preparation:
        """See `WorkerBase`."""
        return self._grammars.prepare(grammar)

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `WorkerBase`."""
        return self._allocated().submit(batch)()

    def append_sampled(self, tokens: Sequence[SampledToken]) -> None:
        """See `WorkerBase`: this rank is alone."""

    def wake_up(self, tags: Collection[str]) -> WakeReport:
        """See `WorkerBase`."""
        return self.wake_with(tags, None, self._check_golden)

    def stored_cache(self) -> StoredCache:
        """See `StoringExecutor.stored_cache`."""
        assert self._golden is not None, "load_model comes first"
        model, cache = self._loaded(), self._allocated().cache
        config = (self.settings.model_path / "config.json").read_bytes()
        weights = sorted(model.weights.checksums.items())
        facts = config, weights, model.max_model_len, self._golden.facts
        return CacheBlocks(cache, make_realm(cache.spec, *facts, *(() if self._draft is None else self._draft.facts)))

    def save_sharded_state(self, directory: str) -> None:
        """See `WorkerBase`."""
        save_sharded_state(self._loaded().weights, self.settings.model_path, Path(directory))

    def verify(self) -> None:
        """See `WorkerBase`."""
        self._check_golden(Stopwatch())

    def shutdown(self) -> None:
        """See `WorkerBase`."""
        self._free_cache()
        if self._model is not None:
            self._model.close()
        if self._draft is not None:
            self._draft.close()
        self._model = self._golden = self._draft = None
        self._grammars.close()
        thaw_garbage_collector()
        self._meter.release_unused()

    def _loaded(self) -> BareModel:
        assert self._model is not None, "load_model comes first"
        return self._model

    def _allocated(self) -> Allocation:
        assert self._allocation is not None, "initialize_cache comes first"
        return self._allocation

    def sleeper(self) -> Sleeper:
        """See `SleepingWorker`."""
        return Sleeper(self._device, self._meter, self._loaded().weights, self._allocated())

    def _free_cache(self) -> None:
        if self._allocation is not None:
            self._allocation.close()
            self._allocation = None

    def _check_golden(self, watch: Stopwatch) -> None:
        assert self._golden is not None, "load_model comes first"
        self._golden.check(self.execute_model, watch, self._allocated().live_cache)

    def _make_runner(self, cache: KVCache, host_cache: KVCache, model: BareModel | None = None) -> BareRunner:
        runner = BareRunner(
            model or self._loaded(), cache, host_cache, self._kernels, max_num_seqs=self.settings.max_num_seqs
        )
        runner.bind_by(self._grammars, expects_drafts=self.settings.max_draft_tokens > 0)
        if self._draft is not None:
            self._draft.attach(runner, cache)
        return runner

    def _run_profile(self, batches: Sequence[Batch]) -> None:
        """Run batches on a cache of one block, so that nothing but activations is added."""
        model = self._loaded().for_profile()
        cache, host_cache = (KVCache(model.cache_spec, count, None) for count in (1, 0))
        runner = self._make_runner(cache, host_cache, model)
        for batch in batches:
            runner.submit(batch)
