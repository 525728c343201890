"""The report of a worker that keeps no cache: 0 blocks, if the model and its largest pass fit. Pure."""

from __future__ import annotations

from dormouse_worker.common.errors import InsufficientMemory
from dormouse_worker.common.ipc import MemoryReport
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.memory.arithmetic import CPU_WORDS, DEVICE_WORDS, Limit, Measured, gib, usable_bytes


def report_without_cache(
    settings: EngineSettings, limit: Limit, measured: Measured, *, device: str, max_model_len: int
) -> MemoryReport:
    """Return the report. Its blocks have no bytes, which says that none are needed."""
    return MemoryReport(
        rank=0,
        total_bytes=limit.total_bytes,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        weights_bytes=measured.weights_bytes,
        peak_activation_bytes=measured.peak_activation_bytes,
        non_torch_bytes=measured.non_torch_bytes,
        kv_cache_bytes=0,
        block_bytes=0,
        block_size=settings.block_size,
        num_gpu_blocks=0,
        num_cpu_blocks=0,
        seconds=measured.seconds,
        device=device,
        limited_by=f"{limit.name} {gib(limit.total_bytes)}",
        max_model_len=max_model_len,
        measured_by=measured.measured_by,
    )


def require_room(report: MemoryReport, settings: EngineSettings, *, is_limit_known: bool) -> None:
    """Raise InsufficientMemory, with the numbers and the knobs, unless the model and its largest pass fit."""
    words = CPU_WORDS if report.device == "cpu" else DEVICE_WORDS
    needed = report.weights_bytes + report.peak_activation_bytes + report.non_torch_bytes
    usable = usable_bytes(settings, report.total_bytes, report.device)
    if is_limit_known and needed > usable:
        raise InsufficientMemory(
            f"weights {gib(report.weights_bytes)}, peak activations {gib(report.peak_activation_bytes)}, "
            f"{words.others} {gib(report.non_torch_bytes)} exceed the {gib(usable)} that this worker may use of "
            f"{gib(report.total_bytes)}; {words.more} or raise gpuMemoryUtilization, or lower maxNumBatchedTokens"
        )
