"""Passes over some sequences, with block tables of their own for each layer group."""

from __future__ import annotations

import numpy as np

from dormouse_worker.model.attention.interface import AttentionMetadata

BLOCK_SIZE = 4
NUM_COLUMNS = 10  # of every table: 40 tokens


def metadata_of(start, count, group=0, window=None):
    """Return the pass over the positions [start, start + count); the tables of the groups follow each other."""
    table = np.arange(group * NUM_COLUMNS, (group + 1) * NUM_COLUMNS)[::-1]
    return _metadata_of([(start, count)], table[None], window)


def metadata_of_several(counts):
    """Return the pass over the first tokens of several sequences, so many of each."""
    tables = np.arange(len(counts) * NUM_COLUMNS)[::-1].reshape(len(counts), NUM_COLUMNS)
    return _metadata_of([(0, count) for count in counts], tables, None)


def _metadata_of(spans, tables, window):
    """Return the pass over a span of each sequence, (start, count)."""
    starts, counts = np.array(spans).T
    positions = np.concatenate([np.arange(start, start + count) for start, count in spans])
    blocks = tables[np.repeat(np.arange(len(spans)), counts), positions // BLOCK_SIZE]
    return AttentionMetadata(
        query_starts=np.concatenate([[0], np.cumsum(counts)]),
        context_lens=starts + counts,
        block_tables=tables,
        slot_mapping=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
        positions=positions,
        block_size=BLOCK_SIZE,
        window=window,
    )
