"""One sequence's passes, with block tables of their own for each layer group."""

from __future__ import annotations

import numpy as np

from dormouse_worker.model.attention.interface import AttentionMetadata

BLOCK_SIZE = 4
NUM_COLUMNS = 10  # of every table: 40 tokens


def metadata_of_several(counts):
    """Return the pass over the first tokens of several sequences, so many of each."""
    tables = np.arange(len(counts) * NUM_COLUMNS)[::-1].reshape(len(counts), NUM_COLUMNS)
    positions = np.concatenate([np.arange(count) for count in counts])
    entries = np.repeat(tables, counts, axis=0)[np.arange(len(positions)), positions // BLOCK_SIZE]
    return AttentionMetadata(
        query_starts=np.concatenate([[0], np.cumsum(counts)]),
        context_lens=np.array(counts),
        block_tables=tables,
        slot_mapping=entries * BLOCK_SIZE + positions % BLOCK_SIZE,
        positions=positions,
        block_size=BLOCK_SIZE,
        window=None,
    )


def metadata_of(start, count, group=0, window=None):
    """Return the pass over the positions [start, start + count); the tables of the groups follow each other."""
    table = np.arange(group * NUM_COLUMNS, (group + 1) * NUM_COLUMNS)[::-1]
    positions = np.arange(start, start + count)
    return AttentionMetadata(
        query_starts=np.array([0, count]),
        context_lens=np.array([start + count]),
        block_tables=table[None],
        slot_mapping=table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,
        positions=positions,
        block_size=BLOCK_SIZE,
        window=window,
    )
