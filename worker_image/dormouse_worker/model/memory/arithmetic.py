"""Memory arithmetic: from what was measured to how many blocks fit. Pure; all sizes in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dormouse_worker.common.ipc import MemoryReport
from dormouse_worker.common.settings import EngineSettings

DEFAULT_KV_CACHE_BYTES = 1 << 30  # the cache's size where neither a limit nor kvCacheMemory is set
RESIDENT_MEMORY = "resident memory"  # a way to measure; `model.device.accounting` has those of devices
EXACT = "kvCacheMemory"  # what bounds the cache where its size was set
BUDGET = "device memory budget"  # what bounds it where a grant, or the flag, leaves less than the share
ROUNDING_BYTES = 4 << 20  # of a budget, kept back: the cache's memory comes in whole pages of 2 MiB, its pools aligned
GRAPH_BYTES_PER_LAYER = 256 << 10  # of one CUDA graph
GRAPH_STREAM_BYTES = 32 << 20  # cuBLAS's workspace for the stream that records them


class Words(NamedTuple):
    """How an error speaks of a kind of device."""

    others: str  # what is neither weights nor activations
    more: str  # how to get more memory
    less: str  # what to lower


CPU_WORDS = Words("interpreter and libraries", "raise the memory limit", "maxNumBatchedTokens, maxNumSeqs or swapSpace")
DEVICE_WORDS = Words(
    "context and libraries", "use a GPU with more memory", "maxNumBatchedTokens or maxNumSeqs, or quantize the weights"
)


@dataclass(frozen=True, slots=True)
class Limit:
    """The memory to share; `is_known` False = the machine's, with nobody having promised it to us."""

    total_bytes: int
    is_known: bool
    name: str = "memory limit"  # what a report calls it


@dataclass(frozen=True, slots=True)
class Measured:
    """What one worker takes besides its cache."""

    weights_bytes: int
    peak_activation_bytes: int
    non_torch_bytes: int
    seconds: float
    graph_bytes: int = 0  # estimated: graphs are captured after the cache is there
    measured_by: str = RESIDENT_MEMORY

    @property
    def needed_bytes(self) -> int:
        """Return the sum."""
        return self.weights_bytes + self.peak_activation_bytes + self.non_torch_bytes + self.graph_bytes


def choose_limit(settings: EngineSettings, container_bytes: int | None, machine_bytes: int) -> Limit:
    """Return the smaller of the setting and the container's limit; without either the machine's memory."""
    known = [size for size in (settings.memory_limit_bytes, container_bytes) if size]
    return Limit(min(known), is_known=True) if known else Limit(machine_bytes, is_known=False)


def split_measurement(
    *, weights_bytes: int, baseline_bytes: int, loaded_bytes: int, peak_bytes: int, parent_bytes: int, seconds: float
) -> Measured:
    """Divide resident memory into the three shares.

    baseline: after the imports, before loading; loaded: after loading and a first pass, at rest; peak: during the
    largest batch; parent: the front's process. Whatever at rest is not weights is non-torch, and at least the
    baseline; whatever the peak has above both is activations.
    """
    own_bytes = max(baseline_bytes, loaded_bytes - weights_bytes)
    return Measured(
        weights_bytes=weights_bytes,
        peak_activation_bytes=max(0, peak_bytes - weights_bytes - own_bytes),
        non_torch_bytes=own_bytes + parent_bytes,
        seconds=seconds,
    )


def split_device_measurement(
    *,
    weights_bytes: int,
    arena_bytes: int,
    torch_bytes: int,
    other_bytes: int,
    graph_bytes: int,
    seconds: float,
    measured_by: str,
) -> Measured:
    """Divide what this process holds on a device with memory of its own.

    arena: what arenas hold; torch: what torch's pool held at most, during the largest batch; other: context, libraries,
    communicators. Weights may lie in either of the first two, so that activations are what both hold above them. A
    neighbour's bytes are in none of these.
    """
    return Measured(
        weights_bytes=weights_bytes,
        peak_activation_bytes=max(0, arena_bytes + torch_bytes - weights_bytes),
        non_torch_bytes=other_bytes,
        seconds=seconds,
        graph_bytes=graph_bytes,
        measured_by=measured_by,
    )


def estimate_graph_bytes(sizes: Sequence[int], *, num_layers: int, row_bytes: int) -> int:
    """Return what CUDA graphs of these batch sizes will take: guessed, until they are captured and measured.

    One pool for all, as large as the largest batch's output (`row_bytes` a sequence); their stream's workspace; and the
    graphs' own nodes, whose bytes are those that vLLM's users report: 0.48 GiB for 67 graphs of a model with 28 layers.
    """
    if not sizes:
        return 0
    return GRAPH_STREAM_BYTES + len(sizes) * num_layers * GRAPH_BYTES_PER_LAYER + max(sizes) * row_bytes


def usable_bytes(settings: EngineSettings, total_bytes: int, device: str) -> int:
    """Return how much of the memory to share this worker may use: its share of it, or its budget if that is less."""
    share_bytes = int(total_bytes * settings.gpu_memory_utilization)
    return min(share_bytes, budget_bytes(settings, total_bytes, device) or share_bytes)


def budget_bytes(settings: EngineSettings, total_bytes: int, device: str) -> int:
    """Return this rank's budget, 0 = none: the one that is set, or what a reserve leaves of the share if that is less.

    On the CPU the ranks of a stage share one device.
    """
    ranks = settings.tensor_parallel_size if device == "cpu" else 1
    budgets = [settings.device_memory_budget_bytes] if settings.device_memory_budget_bytes else []
    if reserve_bytes := settings.device_memory_reserve_bytes:
        left_bytes = int(total_bytes * settings.gpu_memory_utilization) - reserve_bytes
        budgets.append(max(ranks, left_bytes // settings.device_memory_sharers))  # 0 would be no bound at all
    return min(budgets, default=0) // ranks


def cache_bytes(settings: EngineSettings, limit: Limit, measured: Measured, device: str) -> tuple[int, str]:
    """Return the cache's size, possibly negative, and what bounds it."""
    taken_bytes = measured.needed_bytes + shared_swap(device, settings.swap_space_bytes)
    usable = usable_bytes(settings, limit.total_bytes, device) - taken_bytes
    if settings.kv_cache_memory_bytes:
        return settings.kv_cache_memory_bytes, EXACT
    if is_budget_least(settings, limit.total_bytes, device):
        return usable - ROUNDING_BYTES, f"{BUDGET} {gib(budget_bytes(settings, limit.total_bytes, device))}"
    if not limit.is_known:
        return min(DEFAULT_KV_CACHE_BYTES, usable), "kvCacheMemory default 1.0 GiB (no memory limit is set)"
    return usable, f"{limit.name} {gib(limit.total_bytes)}"


def is_budget_least(settings: EngineSettings, total_bytes: int, device: str) -> bool:
    """Return whether a budget leaves less than the share of the device does."""
    return 0 < budget_bytes(settings, total_bytes, device) == usable_bytes(settings, total_bytes, device)


def shared_swap(device: str, swap_bytes: int) -> int:
    """Return how much of the device's memory swapped blocks take: on the CPU it is also the host's."""
    return swap_bytes if device == "cpu" else 0


def make_report(
    settings: EngineSettings,
    limit: Limit,
    measured: Measured,
    *,
    device: str,
    block_bytes: int,
    max_model_len: int,
    rank: int,
) -> MemoryReport:
    """Return the report; its counts are 0 where nothing fits."""
    kv_cache_bytes, limited_by = cache_bytes(settings, limit, measured, device)
    return MemoryReport(
        rank=rank,
        total_bytes=limit.total_bytes,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        weights_bytes=measured.weights_bytes,
        peak_activation_bytes=measured.peak_activation_bytes,
        non_torch_bytes=measured.non_torch_bytes,
        kv_cache_bytes=max(0, kv_cache_bytes),
        block_bytes=block_bytes,
        block_size=settings.block_size,
        num_gpu_blocks=max(0, kv_cache_bytes) // block_bytes,
        num_cpu_blocks=settings.swap_space_bytes // block_bytes,
        seconds=measured.seconds,
        device=device,
        limited_by=limited_by,
        max_model_len=max_model_len,
        graph_bytes=measured.graph_bytes,
        measured_by=measured.measured_by,
    )


def gib(num_bytes: int) -> str:
    """Return a size for people: GiB with two digits, MiB below one GiB."""
    return f"{num_bytes / (1 << 30):.2f} GiB" if num_bytes >= 1 << 30 else f"{num_bytes / (1 << 20):.1f} MiB"
