"""vLLM's engine core, in this process: the only module that imports vLLM.

vLLM builds its core in one go: it loads, measures and allocates. Here its executor, which vLLM lets its users replace,
is made first and measures once; the core is built around it when the number of blocks is agreed.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import time
from collections.abc import Sequence
from typing import Any

import vllm
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMClientError
from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.foreign.vllm.interface import BlockShape, CoreLoad, Loaded, Piece, Row, Step, VllmRequest
from dormouse_worker.foreign.vllm.options import engine_options

logger = logging.getLogger(__name__)

QUEUED, SCHEDULED, PREEMPTED = 1, 2, 3  # of vLLM's EngineCoreEventType
BOUNDLESS_BYTES = 1 << 50


class PatientExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's executor for one process, which has measured already when the engine core asks what fits."""

    def determine_available_memory(self) -> list[int]:
        """Return what is enough for any number of blocks: how many there are is agreed."""
        return [BOUNDLESS_BYTES]

    def compute_most(self) -> None:
        """Run the largest batch, as vLLM does to see what is left; it does not where it compiles nothing."""
        super().determine_available_memory()
        if self.vllm_config.model_config.enforce_eager:
            self.driver_worker.worker.model_runner.profile_run()


class VllmCore:
    """Implements `Core`. Owns vLLM's configuration, its executor and, once blocks are agreed, its engine core."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._can_compile = any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++"))
        if not self._can_compile:
            logger.warning("there is no C++ compiler here (CXX, g++, clang++): vLLM computes without compiling, slower")
        self._config: Any = None
        self._executor: Any = None
        self._core: Any = None

    def __repr__(self) -> str:
        return f"VllmCore({self._settings.model}, {'allocated' if self._core else 'no cache'})"

    def load(self) -> Loaded:
        """See `Core`."""
        try:
            options = engine_options(self._settings, can_compile=self._can_compile)
            self._config = EngineArgs(distributed_executor_backend=PatientExecutor, **options).create_engine_config()
        except (ValueError, VLLMClientError) as error:  # pydantic's is a ValueError
            raise InvalidSettings(f"vLLM refuses these settings: {error}") from error
        model = self._config.model_config
        if model.runner_type != "generate":
            raise ModelInvalid(
                f"{self._settings.model}: runtime 'vllm' serves models that make text, not {model.runner_type}"
            )
        self._executor = PatientExecutor(self._config)
        weights = list(self._executor.driver_worker.worker.get_model().parameters())
        return Loaded(
            num_parameters=sum(weight.numel() for weight in weights),
            weights_bytes=sum(weight.numel() * weight.element_size() for weight in weights),
            dtype=str(model.dtype).removeprefix("torch."),
            vocab_size=model.get_vocab_size(),
            max_model_len=model.max_model_len,
            version=vllm.__version__,
        )

    def compute_most(self) -> None:
        """See `Core`. First what the engine core does before it measures."""
        executor, config = self._executor, self._config
        register_all_kvcache_specs(config)
        specs = [spec for each in executor.get_kv_cache_specs() for spec in each.values()]
        layout = resolve_kv_cache_layout(config, executor.get_supported_kv_cache_layouts(), specs)
        executor.set_kv_cache_layout(layout.name)
        executor.compute_most()

    def block_shape(self) -> BlockShape:
        """See `Core`."""
        config, specs = self._config, self._executor.get_kv_cache_specs()
        cache = get_kv_cache_configs(config, specs, [BOUNDLESS_BYTES])[0]
        num_bytes = sum(tensor.size for tensor in cache.kv_cache_tensors) // cache.num_blocks
        return BlockShape(num_bytes, config.cache_config.block_size)

    def allocate(self, num_blocks: int) -> int:
        """See `Core`."""
        if self._core is not None:
            self.shutdown()
            self.load()
            self.compute_most()
        self._config.cache_config.num_gpu_blocks_override = num_blocks
        self._core = EngineCore(self._config, lambda _: self._executor, log_stats=True)
        return int(self._core.scheduler.kv_cache_config.num_blocks)

    def add(self, request: VllmRequest) -> None:
        """See `Core`."""
        try:
            params = SamplingParams(**request.params)
        except VLLMClientError as error:
            raise ValueError(str(error)) from error
        params._bad_words_token_ids = request.bad_words_token_ids or None  # noqa: SLF001  there is no other way
        ours = EngineCoreRequest(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=request.cache_salt or None,
            data_parallel_rank=None,
            priority=request.priority,
        )
        self._core.add_request(*self._core.preprocess_add_request(ours))

    def abort(self, request_ids: Sequence[str]) -> None:
        """See `Core`."""
        self._core.abort_requests(list(request_ids))

    def step(self) -> Step:
        """See `Core`."""
        told, has_computed = self._core.step_fn()
        self._core.post_step(has_computed)
        outputs = [output for each in (told or {}).values() for output in each.outputs]
        stats = [each.scheduler_stats.prefix_cache_stats for each in (told or {}).values() if each.scheduler_stats]
        return Step(
            [_piece(output) for output in outputs],
            sum(stat.queries for stat in stats if stat is not None),
            sum(stat.hits for stat in stats if stat is not None),
            sum(int(event.type) == PREEMPTED for output in outputs for event in output.events or ()),
        )

    def has_work(self) -> bool:
        """See `Core`."""
        return self._core is not None and (self._core.scheduler.has_requests() or bool(self._core.batch_queue))

    def load_now(self) -> CoreLoad:
        """See `Core`."""
        scheduler = self._core.scheduler
        _, num_waiting = scheduler.get_request_counts()
        running_ids = [request.request_id for request in scheduler.running]
        return CoreLoad(running_ids, num_waiting, scheduler.get_kv_cache_usage())

    def reset_prefix_cache(self) -> None:
        """See `Core`."""
        self._core.reset_prefix_cache()

    def check_health(self) -> None:
        """See `Core`."""
        if self._core is not None and not self.has_work():
            self._core.execute_dummy_batch()

    def shutdown(self) -> None:
        """See `Core`."""
        whole, self._core = self._core or self._executor, None
        if whole is not None:
            whole.shutdown()
        self._executor = self._config = whole = None
        gc.collect()


def _piece(output: EngineCoreOutput) -> Piece:
    """Return it without vLLM's types."""
    times = {int(event.type): event.timestamp for event in reversed(output.events or ())}  # the first of each
    scheduled_s = times.get(SCHEDULED)
    is_first = scheduled_s is not None and bool(output.new_token_ids)
    return Piece(
        output.request_id,
        output.new_token_ids,
        str(output.finish_reason) if output.finish_reason is not None else "",
        _rows(output.new_logprobs),
        _rows(output.new_prompt_logprobs_tensors),
        cached_tokens=output.prefill_stats.num_cached_tokens if output.prefill_stats else 0,
        queue_seconds=scheduled_s - times.get(QUEUED, scheduled_s) if scheduled_s is not None else 0.0,
        prefill_seconds=time.monotonic() - scheduled_s if is_first and scheduled_s is not None else 0.0,
    )


def _rows(told: Any) -> list[Row]:
    return [] if told is None else list(zip(told.logprob_token_ids.tolist(), told.logprobs.tolist(), strict=True))
