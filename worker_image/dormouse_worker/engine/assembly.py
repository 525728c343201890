"""Puts an engine together: from settings, a rank's report and the agreed block counts."""

from __future__ import annotations

import time
from collections.abc import Callable

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.ipc import MemoryReport
from dormouse_worker.common.settings import HEADS, EngineSettings
from dormouse_worker.common.tasks import GENERATE, TRANSCRIBE
from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.block_pool import BlockPool
from dormouse_worker.engine.block_tables import BlockTables, CacheLayout
from dormouse_worker.engine.engine import Engine
from dormouse_worker.engine.executor import Executor, ModelExecutor, StagedExecutor
from dormouse_worker.engine.forward_pass import Limits
from dormouse_worker.engine.images.encoder_cache import EncoderCache
from dormouse_worker.engine.keeping import make_keeper
from dormouse_worker.engine.kv_events import KvEventLog
from dormouse_worker.engine.pooling.engine import PoolingEngine, PoolingLimits
from dormouse_worker.engine.pooling.executor import PoolingExecutor
from dormouse_worker.engine.scheduler import Scheduler
from dormouse_worker.engine.speech.engine import SpeechEngine, SpeechLimits
from dormouse_worker.engine.speech.executor import SpeechExecutor
from dormouse_worker.engine.stepping import BringsEngine, Stepper
from dormouse_worker.engine.swap import SwapSpace

MOST_WHERE_IT_RUNS_AHEAD = 2  # batches: one that the device computes, one that waits behind it


def build_stepper(
    settings: EngineSettings,
    report: MemoryReport,
    agreed: tuple[int, int],
    executor: Executor,
    *,
    clock: Callable[[], float],
    adapters: AdapterSlots | None = None,
    task: str = GENERATE,
) -> Stepper:
    """Return an idle engine for whatever the ranks give: one that needs no blocks makes vectors."""
    if isinstance(executor, BringsEngine):
        return executor.make_stepper()
    if settings.kv_events_config.is_on and (task == TRANSCRIBE or not report.block_bytes):
        raise InvalidSettings(f"kv_events_config is on; a model for {task} has no prefix cache: leave it out")
    if task == TRANSCRIBE:
        assert isinstance(executor, SpeechExecutor), "who transcribes reads sound"
        return SpeechEngine(executor, SpeechLimits(agreed[0], report.max_model_len), clock)
    if report.block_bytes:
        return build_engine(settings, report, agreed, executor, clock=clock, adapters=adapters)
    assert isinstance(executor, PoolingExecutor), "who reports no blocks makes vectors"
    limits = PoolingLimits(settings.max_num_seqs, settings.max_num_batched_tokens, report.max_model_len)
    return PoolingEngine(executor, limits, clock)


def build_engine(
    settings: EngineSettings,
    report: MemoryReport,
    agreed: tuple[int, int],
    executor: ModelExecutor,
    *,
    clock: Callable[[], float],
    adapters: AdapterSlots | None = None,
) -> Engine:
    """Return an idle engine over the agreed (device, host) blocks, and over adapters that outlive it.

    An agreed block holds `block_size` tokens in all layers; a table's block does so in the layers of one group.
    """
    layout = CacheLayout(report.block_size, executor.layer_windows())
    num_gpu_blocks, num_cpu_blocks = (count * len(layout.windows) for count in agreed)
    max_batches_under_way, looks_ahead = _choose_depth(settings, executor)
    limits = Limits(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=report.max_model_len,
        caches_prefixes=settings.enable_prefix_caching,
        max_batches_under_way=max_batches_under_way,
        looks_ahead=looks_ahead,
        max_draft_tokens=settings.max_draft_tokens,
        recalls_answers=settings.speculation_method in {"auto", "suffix"},
        asks_model=settings.asks_model,
        model_reads_along=settings.speculation_method in HEADS,
    )
    tables = BlockTables(BlockPool(num_gpu_blocks), layout)
    if settings.kv_events_config.is_on:
        tables.pool.listener = KvEventLog(layout, time.time)
    images = EncoderCache(report.image_rows, are_whole=report.images_are_whole)
    scheduler = Scheduler(tables, SwapSpace(num_cpu_blocks), limits, clock, adapters, images=images)
    keeper = make_keeper(settings, executor, tables, clock)
    return Engine(executor, scheduler, clock, keeper, image_dir=settings.image_dir)


def _choose_depth(settings: EngineSettings, executor: ModelExecutor) -> tuple[int, bool]:
    """Return how many batches may be under way, and whether a sequence may be in all of them."""
    if settings.pipeline_parallel_size > 1:
        assert isinstance(executor, StagedExecutor), "stages take several batches"
        return settings.pipeline_parallel_size, False
    if settings.max_draft_tokens:  # whose sequences go on from tokens that are known
        return 1, False
    if settings.async_scheduling and isinstance(executor, StagedExecutor) and executor.runs_ahead():
        return MOST_WHERE_IT_RUNS_AHEAD, True
    return 1, False
