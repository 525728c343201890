"""Whether a rank can serve with what its report measured; where not, the numbers and the knobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dormouse_worker.common.errors import InsufficientMemory, MaxModelLenTooLarge
from dormouse_worker.common.ipc import MemoryReport
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.memory.arithmetic import (
    BUDGET,
    CPU_WORDS,
    DEVICE_WORDS,
    EXACT,
    ROUNDING_BYTES,
    Words,
    budget_bytes,
    gib,
    is_budget_least,
    shared_swap,
)


@dataclass(frozen=True, slots=True)
class Balance:
    """What there is, and what of it is taken beside the cache."""

    report: MemoryReport
    words: Words
    budget_bytes: int  # 0 = no budget decides
    shares: Mapping[str, int]  # bytes by name, in the order of telling

    @property
    def total_bytes(self) -> int:
        """Return what all shares and the cache may come to."""
        return self.budget_bytes or self.report.total_bytes

    @property
    def taken_bytes(self) -> int:
        """Return what is taken beside the cache."""
        return sum(self.shares.values())

    def __str__(self) -> str:
        return ", ".join(f"{name} {gib(num_bytes)}" for name, num_bytes in self.shares.items())


def require_fit(report: MemoryReport, settings: EngineSettings) -> None:
    """Raise InsufficientMemory or MaxModelLenTooLarge, with the numbers and the knobs, unless the report can serve."""
    balance = balance_of(report, settings)
    if report.limited_by == EXACT:
        _require_exact(balance)
    if report.num_gpu_blocks == 0:
        raise InsufficientMemory(_why_no_block(balance))
    _require_longest(balance)


def balance_of(report: MemoryReport, settings: EngineSettings) -> Balance:
    """Return who takes what. Graphs, swap space and rounding are named only where they take anything."""
    words = CPU_WORDS if report.device == "cpu" else DEVICE_WORDS
    has_budget = is_budget_least(settings, report.total_bytes, report.device)
    always = {
        "weights": report.weights_bytes - report.draft_bytes,
        **({"draft model's weights": report.draft_bytes} if report.draft_bytes else {}),
        "peak activations": report.peak_activation_bytes,
        words.others: report.non_torch_bytes,
    }
    sometimes = {
        "graphs": report.graph_bytes,
        "swap space": shared_swap(report.device, report.num_cpu_blocks * report.block_bytes),
        "rounding": ROUNDING_BYTES if has_budget else 0,
    }
    shares = always | {name: num_bytes for name, num_bytes in sometimes.items() if num_bytes}
    return Balance(
        report, words, budget_bytes(settings, report.total_bytes, report.device) if has_budget else 0, shares
    )


def _require_exact(balance: Balance) -> None:
    """Raise InsufficientMemory if a cache of the size that was set does not fit, or is no block."""
    report, total_bytes = balance.report, balance.total_bytes
    if balance.taken_bytes + report.kv_cache_bytes > total_bytes:
        there = f"{BUDGET} of {gib(total_bytes)}" if balance.budget_bytes else f"{gib(total_bytes)} there are"
        raise InsufficientMemory(
            f"{balance} and a cache of {gib(report.kv_cache_bytes)} exceed the {there}; "
            f"lower kvCacheMemory or {balance.words.more}"
        )
    if report.num_gpu_blocks == 0:
        raise InsufficientMemory(
            f"kvCacheMemory {report.kv_cache_bytes} is less than one block of {report.block_bytes} bytes; raise it"
        )


def _why_no_block(balance: Balance) -> str:
    report, words = balance.report, balance.words
    beside = f"no block of {report.block_bytes} bytes beside {balance}"
    if balance.budget_bytes:
        return f"the {BUDGET} of {gib(balance.budget_bytes)} leaves {beside}; raise it or lower {words.less}"
    usable = int(report.total_bytes * report.gpu_memory_utilization)
    return (
        f"{gib(report.total_bytes)} × gpuMemoryUtilization {report.gpu_memory_utilization} = {gib(usable)} leave "
        f"{beside}; {words.more} or raise gpuMemoryUtilization, or lower {words.less}"
    )


def _require_longest(balance: Balance) -> None:
    """Raise MaxModelLenTooLarge unless one sequence of the model's length fits alone."""
    report = balance.report
    capacity = report.num_gpu_blocks * report.block_size
    if report.max_model_len > capacity:
        raise MaxModelLenTooLarge(
            f"{report.num_gpu_blocks} blocks of {report.block_size} tokens hold {capacity} tokens, the model length is "
            f"{report.max_model_len} (bounded by {report.limited_by}); set maxModelLen to at most {capacity}, or "
            f"{balance.words.more} or raise gpuMemoryUtilization (or kvCacheMemory where it decides)"
        )
