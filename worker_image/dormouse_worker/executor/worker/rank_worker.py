"""One rank's worker, on whatever device: the model, and the way to the other ranks; the rest is its `Allocation`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec
import torch

from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.host import Host, freeze_garbage_collector, thaw_garbage_collector
from dormouse_worker.common.ipc import ModelInfo
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import Batch, ModelOutput, SampledToken
from dormouse_worker.engine.executor import WakeReport
from dormouse_worker.engine.grammars import Grammars, Preparation
from dormouse_worker.engine.keeping import StoredCache
from dormouse_worker.executor.worker import setup
from dormouse_worker.executor.worker.allocation import Allocation
from dormouse_worker.executor.worker.barrier import RankBarrier
from dormouse_worker.executor.worker.decode_recorder import DecodeRecorder
from dormouse_worker.executor.worker.drafting import load_draft
from dormouse_worker.executor.worker.golden_check import GoldenCheck
from dormouse_worker.executor.worker.memory_errors import memory_errors
from dormouse_worker.executor.worker.model_worker import ModelWorker
from dormouse_worker.executor.worker.recording import Recording
from dormouse_worker.executor.worker.sleeper import Sleeper
from dormouse_worker.model.attention.interface import AttentionBackend
from dormouse_worker.model.attention.select import check_setting
from dormouse_worker.model.forward.choose import describe_path
from dormouse_worker.model.graphs import GraphMaker
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loaded import LoadedModel
from dormouse_worker.model.memory.fit import require_fit
from dormouse_worker.model.memory.profile_run import ProfiledRank, profile_memory
from dormouse_worker.model.parallel.communicator import Alone, Communicator
from dormouse_worker.model.promised_tokens import TokenCopier
from dormouse_worker.model.runner import ModelRunner
from dormouse_worker.model.sleep import SleepPart
from dormouse_worker.model.stopwatch import Stopwatch
from dormouse_worker.model.vision.profile import profiled_images
from dormouse_worker.model.weights.sharded import save_sharded_state


class RankWorker(ModelWorker):
    """Implements `WorkerBase`; a subclass says which device it is and how that one's memory is measured."""

    def __init__(
        self,
        settings: EngineSettings,
        rank: int,
        host: Host | None = None,
        *,
        communicator: Communicator | None = None,
    ) -> None:
        """`communicator` is the way to the other ranks; None = there are none, or `init_device` connects to them."""
        super().__init__(settings, rank, host)
        self.communicator = communicator
        self._backend: AttentionBackend | None = None
        self._allocation: Allocation | None = None
        self._golden: GoldenCheck | None = None
        self._draft: setup.Draft | None = None
        self._grammars = Grammars(settings.model_path / "tokenizer.json") if self.layout.samples else None
        self._recorder = DecodeRecorder(settings, self.layout, self.make_graph_maker)

    def __repr__(self) -> str:
        model = "loaded" if self.has_model else "none"
        return f"{type(self).__name__}(rank={self.rank}, model={model}, {self._allocation!r})"

    def make_graph_maker(self) -> GraphMaker | None:
        """Return who records decode steps; None where nothing can."""
        return None

    def make_token_copier(self) -> TokenCopier | None:
        """Return who copies sampled tokens from the device while it goes on; None where nothing can."""
        return None

    @property
    def recording(self) -> Recording | None:
        """Return what recording the graphs took; None while there are none."""
        return self._recorder.recording

    def init_device(self) -> None:
        """See `WorkerBase`."""
        check_setting(self.settings.attention_backend)
        meter = self._take_device(self.layout)
        meter.measure_part("communicators", self._connect)
        meter.open()

    def load_model(self) -> None:
        """See `WorkerBase`."""
        super().load_model()
        self._draft = load_draft(self.settings, self.device, self._loaded())
        if self._draft is not None:
            self._model = self._draft.target
        model = self._loaded()
        self._backend = self._select_backend(model)
        self._golden = GoldenCheck(model, self.device, self.settings.block_size)

    def get_model_info(self) -> ModelInfo:
        """See `WorkerBase`."""
        model = self._loaded()
        assert self._backend is not None, "it came with the model"
        path = describe_path(model, self._backend.name) + ("" if self._draft is None else f"; {self._draft.words}")
        return msgspec.structs.replace(model.info, compute_path=path)

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """See `WorkerBase`."""
        model = self._loaded()
        self._report = profile_memory(
            self.settings,
            ProfiledRank(self.rank, self.device.name, torch.get_num_threads(), self.layout),
            setup.profiled_model(model, self._recorder.estimate_bytes(model), self._draft_bytes),
            self.meter,
            self._run_profile,
        )
        require_fit(self._report, self.settings)
        return self._report.num_gpu_blocks, self._report.num_cpu_blocks

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """See `WorkerBase`. The first call records the golden tokens, later ones verify them."""
        model = self._loaded()
        self._free_cache()
        spec, counts = model.cache_spec, (num_gpu_blocks, num_cpu_blocks)
        what = f"{num_gpu_blocks} + {num_cpu_blocks} blocks of {spec.block_bytes} bytes cannot be allocated"
        try:
            with RankBarrier(self._group(), "initialize_cache") as meeting, memory_errors(what):
                self._allocation = Allocation(
                    self.device, spec, counts, self._sleep_parts(), self._make_runner, self.settings
                )
                cache, backend = self._allocation.cache, self._attention()
                if self._recorder.record(model, cache, backend, meter=self.meter, communicator=self._group()):
                    self._allocation.restart()
                meeting.meet()
                self._check_golden(Stopwatch())
        except BaseException:
            self._free_cache()
            raise
        freeze_garbage_collector()

    @property
    def computes_batches(self) -> bool:
        """See `ModelWorker`."""
        return type(self).execute_model is RankWorker.execute_model

    def prepare_grammar(self, grammar: Grammar) -> Preparation:
        """See `WorkerBase`."""
        if self._grammars is None or not self.computes_batches:
            return super().prepare_grammar(grammar)
        return self._grammars.prepare(grammar)

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `WorkerBase`."""
        return self.submit(batch)()

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """See `WorkerBase`."""
        return self._allocated().submit(batch)

    def runs_ahead(self) -> bool:
        """See `WorkerBase`."""
        return self._token_copier() is not None and self.computes_batches

    def append_sampled(self, tokens: Sequence[SampledToken]) -> None:
        """See `WorkerBase`."""
        if self.layout.world_size > 1:
            self._allocated().append_sampled(tokens)

    def wake_up(self, tags: Collection[str]) -> WakeReport:
        """See `WorkerBase`."""
        return self.wake_with(tags, RankBarrier(self._group(), "wake_up"), self._check_golden)

    def undo_sleep(self, tags: Collection[str]) -> None:
        """See `WorkerBase`. Neither meets the others nor computes with them: not all of them take part."""
        self.wake_with(tags, None, lambda _: self._loaded().weights.arrive())

    def forget_images(self) -> None:
        """See `SeeingExecutor`."""
        self._allocated().forget_images()

    def stored_cache(self) -> StoredCache:
        """See `StoringExecutor.stored_cache`."""
        if not self.computes_batches:
            return super().stored_cache()
        assert self._golden is not None, "load_model comes first"
        cache, golden = self._allocated().cache, self._golden.facts
        return setup.stored_cache(self.settings, self._loaded(), cache, golden, self._draft)

    def save_sharded_state(self, directory: str) -> None:
        """See `WorkerBase`."""
        weights, model_path = self._loaded().weights, self.settings.model_path
        save_sharded_state(weights, model_path, Path(directory), communicator=self._group())

    def verify(self) -> None:
        """See `WorkerBase`."""
        self._check_golden(Stopwatch())

    def shutdown(self) -> None:
        """See `WorkerBase`."""
        if self.communicator is not None:
            self.communicator.close()
        self._free_cache()
        self._close_model()
        if self._draft is not None:
            self._draft.close()
            self._draft = None
        self._golden = None
        if self._grammars is not None:
            self._grammars.close()
        thaw_garbage_collector()
        self._release_unused()

    def _connect(self) -> None:
        """Connect to the other ranks, unless that is done; what it takes of the device's memory stays taken."""
        if self.communicator is None:
            self.communicator = setup.connect(self.layout, self.device.torch_device)

    def _group(self) -> Communicator:
        assert self.communicator is not None, "init_device comes first"
        return self.communicator

    def _attention(self) -> AttentionBackend:
        assert self._backend is not None, "load_model comes first"
        return self._backend

    def sleeper(self) -> Sleeper:
        """See `SleepingWorker`."""
        return Sleeper(self.device, self.meter, self._loaded().weights, self._allocated())

    def _allocated(self) -> Allocation:
        assert self._allocation is not None, "initialize_cache comes first"
        return self._allocation

    def _free_cache(self) -> None:
        self._recorder.forget()
        if self._allocation is not None:
            self._allocation.close()
            self._allocation = None

    def _token_copier(self) -> TokenCopier | None:
        """Return the device's where this rank is alone: to those of a group tokens come with the next batch.

        Who drafts goes on from tokens that are known.
        """
        return self.make_token_copier() if self.layout.world_size == 1 and self._draft is None else None

    @property
    def _draft_bytes(self) -> int:
        return 0 if self._draft is None else self._draft.weights_bytes

    def _sleep_parts(self) -> tuple[SleepPart, ...]:
        parts = self._loaded().sleep_parts
        return parts if self._draft is None else (*parts, self._draft.sleep_part)

    def _make_runner(
        self,
        cache: KVCache,
        host_cache: KVCache,
        communicator: Communicator | None = None,
        model: LoadedModel | None = None,
    ) -> ModelRunner:
        runner = setup.make_runner(
            model or self._loaded(),
            (cache, host_cache),
            self._attention(),
            max_num_seqs=self.settings.max_num_seqs,
            graphs=self._recorder.graphs,
            communicator=communicator or self._group(),
            copier=self._token_copier(),
        )
        if self._grammars is not None:
            runner.bind_by(self._grammars, expects_drafts=self.settings.max_draft_tokens > 0)
        if self._draft is not None:
            self._draft.attach(runner, cache, host_cache)
        return runner

    def _select_backend(self, model: LoadedModel) -> AttentionBackend:
        wants_graphs = bool(self._recorder.sizes)
        return setup.choose_backend(self.settings, model, self.device.torch_device, wants_graphs=wants_graphs)

    def _check_golden(self, watch: Stopwatch) -> None:
        assert self._golden is not None, "load_model comes first"
        self._golden.check(self.execute_model, watch, self._allocated().live_cache)

    def _run_profile(self, batches: Sequence[Batch]) -> None:
        """Run batches on a cache of one block, so that nothing but activations is added.

        As if alone: what was measured at an earlier start may save one rank the run, and not another.
        """
        model = self._loaded().for_profile()
        cache, host_cache = (KVCache(model.cache_spec, count, self.device.torch_device) for count in (1, 0))
        runner = self._make_runner(cache, host_cache, Alone(self.layout), model)
        with profiled_images(model):
            for batch in batches:
                runner.execute(batch)
            if self._draft is not None:
                self._draft.run(batches, cache, host_cache)
