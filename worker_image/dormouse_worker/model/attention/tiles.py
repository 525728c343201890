"""Divides a pass into tiles: what one program of our kernels attends with. Pure; see `triton_kernels`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.interface import AttentionMetadata

TILE_ROWS = 64  # rows that a tile of a prefill fills, if the heads divide well
TILE_BYTES = 1 << 15  # of a tile's queries, which stay in shared memory: 64 KiB of it on the smallest device


@dataclass(frozen=True, slots=True)
class Tiles:
    """Records [sequence, first row, first position, queries], those of decoding sequences apart."""

    decode: Ints  # [n, 4] sequences with one row, one tile each
    prefill: Ints  # [m, 4]

    @property
    def longest_decode(self) -> int:
        """Return the largest context of a decoding sequence, in tokens; 0 = none decodes."""
        return int(self.decode[:, 2].max()) + 1 if len(self.decode) else 0


def choose_queries_per_tile(heads_per_kv_head: int, query_bytes: int) -> int:
    """Return how many queries of a prefill share a tile, a power of two; query_bytes = of one head of one query."""
    rows = min(TILE_ROWS, TILE_BYTES // query_bytes)
    queries = max(1, rows // heads_per_kv_head)
    return 1 << (queries.bit_length() - 1)


def make_tiles(metadata: AttentionMetadata, queries_per_tile: int) -> Tiles:
    """Divide the rows of the pass: every row belongs to one tile."""
    lens, starts = metadata.query_lens, metadata.query_starts[:-1]
    first_positions = metadata.context_lens - lens
    decode, prefill = np.flatnonzero(lens == 1), np.flatnonzero(lens > 1)
    counts = -(-lens[prefill] // queries_per_tile)
    sequences = np.repeat(prefill, counts)
    offsets = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) * queries_per_tile
    return Tiles(
        decode=np.stack([decode, starts[decode], first_positions[decode], lens[decode]], axis=1),
        prefill=np.stack(
            [
                sequences,
                starts[sequences] + offsets,
                first_positions[sequences] + offsets,
                np.minimum(queries_per_tile, lens[sequences] - offsets),
            ],
            axis=1,
        ),
    )
