"""What a backend is given and what it must do. Names of the fields as in vLLM's metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache

Ints = npt.NDArray[np.int64]


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


class AttentionPlan(Protocol):
    """One forward pass prepared; the same for all layers of a group."""

    def attend(self, call: AttentionCall, query: torch.Tensor, layer: LayerCache) -> torch.Tensor:
        """Attend from query [T, Hq, D] to the contexts in the pools, causally; return [T, Hq, Dv].

        The keys and values of this pass have been written to the pools before. Query head h reads key head
        h // (Hq / Hkv).
        """


class AttentionBackend(Protocol):
    """Makes plans. `name` appears in reports."""

    name: str

    def plan(self, metadata: AttentionMetadata, device: torch.device) -> AttentionPlan:
        """Prepare one forward pass: everything that does not depend on the layer."""
