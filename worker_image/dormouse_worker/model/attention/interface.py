"""What a backend is given and what it must do. Names of the fields as in vLLM's metadata."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeGuard

import numpy as np

from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache
from dormouse_worker.model.tensors import Dtype

if TYPE_CHECKING:
    import torch

    from dormouse_worker.model.attention.machine import Machine


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """A packed batch of N sequences and T tokens for one layer group, on the host: backends make device plans of it.

    Sequence i owns the rows [query_starts[i], query_starts[i + 1]) of the packed input. Its context after this pass
    is context_lens[i] tokens long and ends with those rows. Before first_positions[i] a table's entries mean nothing.
    """

    query_starts: Ints  # [N + 1]
    context_lens: Ints  # [N]
    block_tables: Ints  # [N, B]; each row covers its context
    slot_mapping: Ints  # [T] where the key and value of each row are stored
    positions: Ints  # [T]
    block_size: int
    window: int | None = None  # of all layers of the group; None = they see everything, or each says its own
    last_seen: Ints | None = None  # [T] up to which position each row sees, within this pass; None = up to its own

    @property
    def query_lens(self) -> Ints:
        """Return the rows of each sequence, [N]."""
        return np.diff(self.query_starts)

    @property
    def first_positions(self) -> Ints:
        """Return the first position that a row of each sequence sees, [N]."""
        if self.window is None:
            return np.zeros_like(self.context_lens)
        first: Ints = np.maximum(0, self.context_lens - self.query_lens - self.window + 1)
        return first

    def slots(self, sequences: Ints, positions: Ints) -> Ints:
        """Return where the positions [n, L] of the sequences [n] lie, [n, L]."""
        blocks = self.block_tables[sequences[:, None], positions // self.block_size]
        slots: Ints = blocks * self.block_size + positions % self.block_size
        return slots


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a layer asks of a backend; the same for all its passes."""

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    dtype: Dtype
    block_size: int
    window: int | None = None
    has_soft_cap: bool = False
    has_sinks: bool = False
    looks_ahead: bool = False  # tokens of an image see those behind them, too
    is_rounded: bool = False  # keys and values are stored with 8 bits; asked of nobody who is not known to read them

    @property
    def heads_per_kv_head(self) -> int:
        """Return how many query heads read one key head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class BackendSizes:
    """The largest pass that a backend must ever compute: what it allocates, it allocates once, by these."""

    shapes: tuple[AttentionShape, ...]  # of all layers, each different one once
    max_num_seqs: int
    max_model_len: int  # tokens
    num_groups: int = 1  # layer groups, each with block tables of its own

    @property
    def max_blocks(self) -> int:
        """Return the blocks of the longest sequence."""
        return -(-self.max_model_len // self.shapes[0].block_size)


class GraphSupport(Enum):
    """Which passes of a backend a CUDA graph may capture."""

    NEVER = "never"
    DECODE = "decode"  # one row for each sequence: the backend is also a `GraphBackend`


class AttentionPlan(Protocol):
    """One forward pass prepared; the same for all layers of a group."""

    def write(self, layer: LayerCache, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store the pass's key [T, Hkv, D] and value [T, Hkv, Dv] in the pools, at the metadata's slots."""

    def attend(self, call: AttentionCall, query: torch.Tensor, layer: LayerCache) -> torch.Tensor:
        """Attend from query [T, Hq, D] to the contexts in the pools, causally but for `last_seen`; return [T, Hq, Dv].

        The keys and values of this pass have been written before. Query head h reads key head h // (Hq / Hkv).
        """


class GraphPlan(AttentionPlan, Protocol):
    """A plan of N decoding sequences whose device buffers keep their addresses, so that a graph can capture it.

    `write` and `attend` launch the same kernels over the same addresses whatever the buffers hold.
    """

    def refresh(self, metadata: AttentionMetadata) -> None:
        """Fill the buffers for a pass of at most N sequences with one row each, on the current stream.

        The remaining rows become dummies: nothing is stored for them, and they attend to nothing and get zeros.
        """


class AttentionBackend(Protocol):
    """Makes plans. `name` appears in settings and reports."""

    name: str
    graph_support: GraphSupport

    @staticmethod
    def supports(machine: Machine, shape: AttentionShape) -> str | None:
        """Return why such a layer cannot be computed on such a machine; None = it can. Touches no device."""

    def workspace_bytes(self) -> int:
        """Return the device memory that the backend keeps; 0 = none."""

    def bind_workspace(self, workspace: torch.Tensor) -> None:
        """Use these bytes, uint8 [at least workspace_bytes()], from now on; before the first plan.

        What they hold may be lost between two passes, their address may not change. Without a call the backend
        allocates its own at the first plan.
        """

    def plan(self, metadata: AttentionMetadata, device: torch.device) -> AttentionPlan:
        """Prepare one forward pass: everything that does not depend on the layer."""


class EagerBackend:
    """What a backend says that needs no memory of its own and no graphs, and computes everything."""

    graph_support = GraphSupport.NEVER

    @staticmethod
    def supports(machine: Machine, shape: AttentionShape) -> str | None:  # noqa: ARG004
        """See `AttentionBackend`."""
        return None

    def workspace_bytes(self) -> int:
        """See `AttentionBackend`."""
        return 0

    def bind_workspace(self, workspace: torch.Tensor) -> None:
        """See `AttentionBackend`."""


class GraphBackend(AttentionBackend, Protocol):
    """A backend with `GraphSupport.DECODE`."""

    def graph_plan(self, group: int, num_seqs: int, device: torch.device) -> GraphPlan:
        """Return a plan of dummies only. Plans of one group share their buffers: the last one refreshed counts."""


def is_graph_backend(backend: AttentionBackend) -> TypeGuard[GraphBackend]:
    """Return whether its decode steps can be recorded."""
    return backend.graph_support is not GraphSupport.NEVER


class BackendFactory(Protocol):
    """How a backend is made; its class is one. What it supports can be asked before anything is built."""

    @property
    def graph_support(self) -> GraphSupport:
        """See `AttentionBackend`."""

    def __call__(self, sizes: BackendSizes) -> AttentionBackend:
        """Return a backend for passes of at most these sizes."""

    def supports(self, machine: Machine, shape: AttentionShape) -> str | None:
        """See `AttentionBackend`."""
