"""Passes over some sequences, with block tables of their own for each layer group."""

from __future__ import annotations

import numpy as np
import torch

from dormouse_worker.model.attention.interface import AttentionMetadata
from dormouse_worker.model.batch_rows import BatchRows
from dormouse_worker.model.forward.choose import ForwardPaths
from dormouse_worker.model.input_batch import PackedInput

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


def compute(
    paths: ForwardPaths, groups: list[AttentionMetadata], token_ids: torch.Tensor, rows: torch.Tensor, lora_slots=None
):
    """Return the logits of a pass, a tensor of its own, by the path that fits it."""
    first = groups[0]
    packed = PackedInput(
        BatchRows(()), token_ids.numpy(), first.positions, first.query_starts, tuple(groups), lora_slots
    )
    return torch.as_tensor(paths.compute(packed, rows.numpy())).clone()  # the next pass reuses them
