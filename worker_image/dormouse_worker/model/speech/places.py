"""The report of a worker whose blocks are places for windows of sound. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from dormouse_worker.common.ipc import MemoryReport
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.memory.arithmetic import Limit, Measured, make_report
from dormouse_worker.model.speech.cache import Sizes


def report_places(
    settings: EngineSettings, limit: Limit, measured: Measured, *, device: str, sizes: Sizes
) -> MemoryReport:
    """Return the report: as many blocks as fit, at most those that a pass has rows for."""
    report = make_report(
        settings,
        limit,
        measured,
        device=device,
        block_bytes=sizes.place_bytes,
        max_model_len=sizes.max_target_positions,
        rank=0,
    )
    return replace(
        report,
        block_size=sizes.max_target_positions,
        num_gpu_blocks=min(report.num_gpu_blocks, settings.max_num_seqs),
        num_cpu_blocks=0,
    )
