"""The verbs of our executors, carried out by vLLM's core: load, measure, allocate. Others are refused by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

import msgspec

from dormouse_worker.common.adapters import AdapterInfo, AdapterList
from dormouse_worker.common.errors import Damaged, InsufficientMemory, InvalidArgument, MaxModelLenTooLarge, WrongState
from dormouse_worker.common.grammar import Grammar, GrammarRefused
from dormouse_worker.common.ipc import MadeTokenizer, MemoryReport, ModelInfo, RankStatus
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import Batch, ModelOutput
from dormouse_worker.engine.executor import SleepReport, WakeReport
from dormouse_worker.engine.grammars import Preparation
from dormouse_worker.engine.stepping import Stepper
from dormouse_worker.foreign.vllm.interface import Core, Loaded
from dormouse_worker.foreign.vllm.options import check_vllm_settings
from dormouse_worker.foreign.vllm.stepper import VllmStepper
from dormouse_worker.model.memory.arithmetic import gib, make_report
from dormouse_worker.model.memory.resident import Meter

RESERVED_BLOCKS = 1  # vLLM's block 0 holds nobody's tokens


class VllmExecutor:
    """Implements `Executor`, and brings its own engine. Owns what was measured."""

    def __init__(self, settings: EngineSettings, make_core: Callable[[], Core], meter: Meter) -> None:
        """`make_core` imports vLLM."""
        self._settings = settings
        self._make_core = make_core
        self._meter = meter
        self._core: Core | None = None
        self._loaded: Loaded | None = None
        self._load_seconds = 0.0
        self._report: MemoryReport | None = None

    def __repr__(self) -> str:
        return f"VllmExecutor({self._settings.model})"

    def init_device(self) -> None:
        """See `Executor`."""
        check_vllm_settings(self._settings)
        self._core = self._make_core()
        self._meter.open()

    def load_model(self) -> None:
        """See `Executor`."""
        started_s = time.monotonic()
        self._loaded = self._built().load()
        self._load_seconds = time.monotonic() - started_s

    def get_model_info(self) -> ModelInfo:
        """See `Executor`."""
        loaded = self._known()
        return ModelInfo(
            num_parameters=loaded.num_parameters,
            dtype=loaded.dtype,
            load_bytes=loaded.weights_bytes,
            load_seconds=self._load_seconds,
            compute_path=f"vllm {loaded.version}",
            vocab_size=loaded.vocab_size,
        )

    def convert_tokenizer(self) -> MadeTokenizer:
        """See `Executor`."""
        if (self._settings.model_path / "tokenizer.json").is_file():
            return MadeTokenizer()
        return MadeTokenizer(problem="runtime vllm makes no tokenizer.json, and the model has none: add one")

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """See `Executor`."""
        core, loaded = self._built(), self._known()
        measured = self._meter.measure(loaded.weights_bytes, warm_up=core.compute_most, peak=core.compute_most)
        block = core.block_shape()
        report = make_report(
            msgspec.structs.replace(self._settings, block_size=block.num_tokens),
            self._meter.limit(),
            measured,
            device=self._settings.device,
            block_bytes=block.num_bytes,
            max_model_len=loaded.max_model_len,
            rank=0,
        )
        self._report = report
        _check_fits(report)
        return report.num_gpu_blocks, 0

    def get_memory_report(self) -> MemoryReport | None:
        """See `Executor`."""
        return self._report

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """See `Executor`. `validation` has checked what holds for every engine."""
        del num_cpu_blocks  # none were reported
        assert self._report is not None, "measured before"
        if num_gpu_blocks < _least_blocks(self._report):
            raise InvalidArgument(
                f"num_gpu_blocks is {num_gpu_blocks}; of these vLLM keeps one for itself, and the model length "
                f"{self._report.max_model_len} needs {_least_blocks(self._report)} of {self._report.block_size} tokens"
            )
        if (found := self._built().allocate(num_gpu_blocks)) != num_gpu_blocks:
            raise Damaged(f"{num_gpu_blocks} blocks are agreed, and vLLM says that it has {found}")

    def make_stepper(self) -> Stepper:
        """Return an idle engine over the allocated cache."""
        return VllmStepper(self._built(), self._known().max_model_len)

    def layer_windows(self) -> tuple[int | None, ...]:
        """See `Executor`. vLLM's own affair."""
        return (None,)

    def prepare_grammar(self, grammar: Grammar) -> Preparation:
        """See `Executor`."""
        del grammar
        raise GrammarRefused("runtime vllm binds no answers")

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `Executor`. Nobody asks: `make_stepper` has the engine."""
        _refuse("execute_model", f"a batch of {len(batch.sequences)}")

    def start_profile(self, directory: str) -> None:
        """See `Executor`."""
        _refuse("start_profile", directory)

    def stop_profile(self) -> str:
        """See `Executor`."""
        raise WrongState("no profile runs: runtime vllm takes none")

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int] = ()) -> SleepReport:
        """See `Executor`. On processors vLLM's weights and cache cannot be given back but with the process."""
        del tags, kept_blocks
        _refuse("sleep", f"level {level}; 3 ends the engine process")

    def prepare_wake_up(self, tags: Collection[str]) -> int:
        """See `Executor`. Nothing sleeps."""
        del tags
        return 0

    def wake_up(self, tags: Collection[str]) -> WakeReport:
        """See `Executor`. Nothing sleeps."""
        del tags
        return WakeReport({})

    def add_lora(self, path: str, digest: str = "", seconds: float = math.inf) -> AdapterInfo | None:
        """See `Executor`."""
        del digest, seconds
        _refuse("add_lora", path)

    def remove_lora(self, digest: str) -> None:
        """See `Executor`. There are none."""

    def list_loras(self) -> AdapterList:
        """See `Executor`."""
        return AdapterList([], {})

    def save_sharded_state(self, directory: str) -> None:
        """See `Executor`."""
        _refuse("save_sharded_state", directory)

    def get_rank_statuses(self) -> tuple[RankStatus, ...]:
        """See `Executor`."""
        return ()

    def check_ranks(self) -> None:
        """See `Executor`."""

    def verify(self) -> None:
        """See `Executor`. There are no golden tokens: nothing wakes but by loading."""

    def check_health(self) -> None:
        """See `Executor`."""
        self._built().check_health()

    def shutdown(self) -> None:
        """See `Executor`."""
        if self._core is not None:
            self._core.shutdown()

    def abandon(self) -> None:
        """See `Executor`. There are no other processes."""

    def _built(self) -> Core:
        assert self._core is not None, "init_device came first"
        return self._core

    def _known(self) -> Loaded:
        assert self._loaded is not None, "load_model came first"
        return self._loaded


def _least_blocks(report: MemoryReport) -> int:
    """Return how many blocks the longest request takes, with what vLLM keeps for itself."""
    return -(-report.max_model_len // report.block_size) + RESERVED_BLOCKS


def _check_fits(report: MemoryReport) -> None:
    """Raise InsufficientMemory, MaxModelLenTooLarge, naming the numbers and what to change."""
    if report.num_gpu_blocks <= RESERVED_BLOCKS:
        raise InsufficientMemory(
            f"weights {gib(report.weights_bytes)}, activations {gib(report.peak_activation_bytes)} and vLLM "
            f"{gib(report.non_torch_bytes)} leave {gib(report.kv_cache_bytes)} of {gib(report.total_bytes)} "
            f"({report.limited_by}), not two blocks of {report.block_bytes} bytes: raise the memory limit"
        )
    if report.num_gpu_blocks < (least := _least_blocks(report)):
        raise MaxModelLenTooLarge(
            f"max_model_len {report.max_model_len} needs {least} blocks of {report.block_size} tokens; "
            f"{report.num_gpu_blocks} fit ({report.limited_by}): lower maxModelLen or raise the memory limit"
        )


def _refuse(method: str, value: str) -> NoReturn:
    raise InvalidArgument(f"{method} is asked for {value}; runtime vllm does not do that")
