"""Puts an engine together: from settings, a rank's report and the agreed block counts."""

from __future__ import annotations

from collections.abc import Callable

from dormouse_worker.engine.block_pool import BlockPool
from dormouse_worker.engine.block_tables import BlockTables, CacheLayout
from dormouse_worker.engine.engine import Engine
from dormouse_worker.engine.executor import ModelExecutor, StagedExecutor
from dormouse_worker.engine.forward_pass import Limits
from dormouse_worker.engine.scheduler import Scheduler
from dormouse_worker.engine.swap import SwapSpace
from dormouse_worker.ipc import MemoryReport
from dormouse_worker.settings import EngineSettings


def build_engine(
    settings: EngineSettings,
    report: MemoryReport,
    agreed: tuple[int, int],
    executor: ModelExecutor,
    *,
    clock: Callable[[], float],
) -> Engine:
    """Return an idle engine over the agreed (device, host) blocks.

    An agreed block holds `block_size` tokens in all layers; a table's block does so in the layers of one group.
    """
    layout = CacheLayout(report.block_size, executor.layer_windows())
    num_gpu_blocks, num_cpu_blocks = (count * len(layout.windows) for count in agreed)
    limits = Limits(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=report.max_model_len,
        caches_prefixes=settings.enable_prefix_caching,
        max_batches_under_way=settings.pipeline_parallel_size if isinstance(executor, StagedExecutor) else 1,
    )
    tables = BlockTables(BlockPool(num_gpu_blocks), layout)
    return Engine(executor, Scheduler(tables, SwapSpace(num_cpu_blocks), limits, clock), clock)
