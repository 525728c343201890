"""CUDA graphs of decode steps: recorded once per batch size, replayed for every batch that fits.

A decode step of a small batch is bound by the time that the host needs to launch its kernels; a graph launches them all
at once. It repeats addresses, not values: inputs, plans and logits live in buffers that stay, and so do weights and
cache (see `device.arena`), which is why graphs outlive every sleep.

    batch of n sequences -> the smallest graph of size >= n
    rows    | 0 ... n-1: sequences | n ... size-1: dummies, which store nothing and attend to nothing |

Graphs are recorded from the largest to the smallest: all share one memory pool, and the largest decides its size.
Larger batches, and those in which somebody still reads a prompt, run without a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from dormouse_worker.common.errors import Internal
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.interface import AttentionPlan, GraphBackend, GraphPlan
from dormouse_worker.model.input_batch import PackedInput

DENSE_SIZES = (1, 2, 4)
SIZE_STEP = 8
MAX_SIZE = 512  # beyond it the kernels take longer than their launches

# Takes token ids [T], positions [T], rows of them [R] and the plans of all layer groups; returns logits [R, V].
Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Sequence[AttentionPlan]], torch.Tensor]


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Do it again on the current stream, with what the buffers hold now."""


class GraphMaker(Protocol):
    """Records work on a device."""

    def record(self, work: Callable[[], None]) -> Graph:
        """Do the work at least once, then record it. The work must not depend on the values of its buffers.

        Raises RuntimeError for work that cannot be recorded, a wait for the device for example.
        """


class CudaGraphMaker:
    """Records CUDA graphs that share one memory pool and one stream.

    For each stream on which it multiplies cuBLAS keeps a workspace for good, 32 MiB on Hopper.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(self, work: Callable[[], None]) -> Graph:
        """See `GraphMaker`. The first run, outside the graph, lets kernels compile and libraries take their memory.

        Other threads may call the device meanwhile: NCCL's watches its events. Raises Internal if the device itself
        has failed, which computes nothing any more.
        """
        current = torch.cuda.current_stream()
        try:
            return self._capture(current, work)
        except RuntimeError:
            torch.cuda.set_stream(current)  # a capture that fails leaves its own
            _require_device()
            raise

    def _capture(self, current: torch.cuda.Stream, work: Callable[[], None]) -> Graph:
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph


def _require_device() -> None:
    """Raise Internal if the device computes nothing any more: it then says so at every wait."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise Internal(f"the device failed while decode steps were recorded: {error}") from error


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Return the batch sizes worth a graph: 1, 2, 4, then every eighth, and the largest batch itself."""
    largest = min(max_num_seqs, MAX_SIZE)
    sizes = {*DENSE_SIZES, *range(SIZE_STEP, largest, SIZE_STEP), largest}
    return tuple(sorted(size for size in sizes if size <= largest))


@dataclass(frozen=True, slots=True)
class _Recorded:
    """One size's graph and what it reads."""

    graph: Graph
    plans: tuple[GraphPlan, ...]  # by layer group


class DecodeGraphs:
    """Owns the static inputs and logits, and a graph for each size."""

    def __init__(self, forward: Forward, backend: GraphBackend, sizes: Sequence[int], device: torch.device) -> None:
        self._forward = forward
        self._backend = backend
        self._sizes = tuple(sorted(sizes))
        self._device = device
        self._input = torch.zeros(2, self._sizes[-1], dtype=torch.long, device=device)  # token ids, positions
        self._rows = torch.arange(self._sizes[-1], device=device)
        self._logits: torch.Tensor | None = None  # [largest size, V]
        self._recorded: dict[int, _Recorded] = {}

    def __repr__(self) -> str:
        return f"DecodeGraphs({len(self._recorded)} of sizes {', '.join(map(str, self._sizes))})"

    def record(self, maker: GraphMaker, num_groups: int) -> None:
        """Record all sizes. Only dummies are computed: the cache stays as it is."""
        for size in reversed(self._sizes):
            plans = tuple(self._backend.graph_plan(group, size, self._device) for group in range(num_groups))
            graph = maker.record(lambda size=size, plans=plans: self._compute(size, plans))  # type: ignore[misc]  # bound now
            self._recorded[size] = _Recorded(graph, plans)

    @property
    def num_recorded(self) -> int:
        """Return how many sizes have a graph."""
        return len(self._recorded)

    def fits(self, packed: PackedInput, rows: Ints) -> bool:
        """Return whether a graph computes this pass: one row for each sequence, all of them wanted, not too many."""
        num_seqs = len(packed.query_starts) - 1
        is_decode = len(packed.token_ids) == num_seqs and np.array_equal(rows, np.arange(num_seqs))
        return bool(self._recorded) and is_decode and num_seqs <= self._sizes[-1]

    def run(self, packed: PackedInput, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits [N, V] of a pass that fits; they hold until the next pass.

        inputs [2, N] on the device: token ids and positions.
        """
        num_seqs = len(packed.token_ids)
        recorded = self._recorded[next(size for size in self._sizes if size >= num_seqs)]
        self._input[:, :num_seqs].copy_(inputs)
        for plan, metadata in zip(recorded.plans, packed.groups, strict=True):
            plan.refresh(metadata)
        recorded.graph.replay()
        assert self._logits is not None, "recorded"
        return self._logits[:num_seqs]

    def _compute(self, size: int, plans: Sequence[AttentionPlan]) -> None:
        token_ids, positions = self._input[:, :size]
        logits = self._forward(token_ids, positions, self._rows[:size], plans)
        if self._logits is None:  # the first run of the largest size
            self._logits = torch.empty_like(logits)
        self._logits[:size].copy_(logits)
