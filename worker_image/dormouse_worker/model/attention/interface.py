"""What a backend is given and what it must do. Names of the fields as in vLLM's metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from dormouse_worker.engine.batch import Batch
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """A packed batch of N sequences and T tokens, on the host: each backend makes its own device plan of it.

    Sequence i owns the rows [query_starts[i], query_starts[i + 1]) of the packed input. Its context after this pass
    is context_lens[i] tokens long and ends with those rows.
    """

    query_starts: Ints  # [N + 1]
    context_lens: Ints  # [N]
    block_tables: tuple[Ints, ...]  # N tables; each covers its context
    slot_mapping: Ints  # [T] where the key and value of each row are stored
    positions: Ints  # [T]
    block_size: int

    @property
    def query_lens(self) -> Ints:
        """Return the rows of each sequence, [N]."""
        return np.diff(self.query_starts)

    def slots(self, sequence: int) -> Ints:
        """Return the slots of the sequence's whole context, in token order."""
        return _slots(self.block_tables[sequence], self.block_size)[: self.context_lens[sequence]]


def build_metadata(batch: Batch, block_size: int) -> AttentionMetadata:
    """Describe the batch for attention."""
    lengths = np.array([len(sequence.token_ids) for sequence in batch.sequences], dtype=np.int64)
    tables = tuple(np.asarray(sequence.block_ids, dtype=np.int64) for sequence in batch.sequences)
    rows = list(zip(batch.sequences, tables, strict=True))
    return AttentionMetadata(
        query_starts=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
        context_lens=np.array([sequence.end for sequence in batch.sequences], dtype=np.int64),
        block_tables=tables,
        slot_mapping=np.concatenate([_slots(table, block_size)[seq.start : seq.end] for seq, table in rows]),
        positions=np.concatenate([np.arange(seq.start, seq.end) for seq in batch.sequences]),
        block_size=block_size,
    )


def _slots(table: Ints, block_size: int) -> Ints:
    slots: Ints = (table[:, None] * block_size + np.arange(block_size)).reshape(-1)
    return slots


class AttentionPlan(Protocol):
    """One forward pass prepared; the same for all layers."""

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
