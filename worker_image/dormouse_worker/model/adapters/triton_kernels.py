"""What adapters add to a map, as two Triton kernels over rows grouped by slot. `triton_adapters` launches them.

    inputs [T, K] --shrink: A of the slot [parts][rank][K]--> low [n, parts, rank] --expand: B [rank][outputs]--> += out

One program owns a tile: up to ROWS rows of one slot, so that its matrices are read once for all of them (Punica: Chen
et al. 2023, arXiv 2310.18547). Rows lie anywhere: `order` [n] names them, slot by slot. Sums are float32 in an order of
their own for each row, whatever rows share the tile; the sum with the map's output is rounded once.

`tiles` is int32 [m, 3]: slot, first place in `order`, number of rows. Slots lie `slot_stride` elements apart. Names in
capitals are compiled in.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["slot_stride"])
def shrink(
    low,
    inputs,
    a,
    order,
    tiles,
    input_stride,
    slot_stride,
    NUM_INPUTS: tl.constexpr,
    RANK: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    INPUTS: tl.constexpr,
    WIDENS: tl.constexpr,
):
    """Fill RANKS of the ranks of `low`, float32 [n, NUM_PARTS, RANK]; programs [m, NUM_PARTS, RANK / RANKS]."""
    tile = tiles + tl.program_id(0) * 3
    part = tl.program_id(1)
    slot = tl.load(tile).to(tl.int64)
    place = tl.load(tile + 1) + tl.arange(0, ROWS)
    is_row = tl.arange(0, ROWS) < tl.load(tile + 2)
    row = tl.load(order + place, mask=is_row, other=0).to(tl.int64)
    rank = tl.program_id(2) * RANKS + tl.arange(0, RANKS)
    is_rank = rank < RANK
    column = tl.arange(0, INPUTS)
    from_row = inputs + row[:, None] * input_stride
    from_rank = a + slot * slot_stride + (part * RANK + rank[None, :]).to(tl.int64) * NUM_INPUTS
    total = tl.zeros((ROWS, RANKS), dtype=tl.float32)
    for begin in range(0, NUM_INPUTS, INPUTS):
        at = begin + column
        is_column = at < NUM_INPUTS
        rows = tl.load(from_row + at[None, :], mask=is_row[:, None] & is_column[None, :], other=0.0)
        weights = tl.load(from_rank + at[:, None], mask=is_column[:, None] & is_rank[None, :], other=0.0)
        if WIDENS:
            rows = rows.to(tl.float32)
            weights = weights.to(tl.float32)
        total = tl.dot(rows, weights, total, input_precision="ieee")
    to = low + ((place[:, None] * NUM_PARTS + part) * RANK + rank[None, :]).to(tl.int64)
    tl.store(to, total, mask=is_row[:, None] & is_rank[None, :])


@triton.jit(do_not_specialize=["slot_stride", "part", "start"])
def expand(
    outputs,
    low,
    b,
    order,
    tiles,
    output_stride,
    slot_stride,
    rank_stride,
    part,
    start,
    num_outputs,
    RANK: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    WIDENS: tl.constexpr,
):
    """Add to outputs [start, start + num_outputs) what one part's B makes of `low`; programs [m, num / OUTPUTS]."""
    tile = tiles + tl.program_id(0) * 3
    slot = tl.load(tile).to(tl.int64)
    place = tl.load(tile + 1) + tl.arange(0, ROWS)
    is_row = tl.arange(0, ROWS) < tl.load(tile + 2)
    row = tl.load(order + place, mask=is_row, other=0).to(tl.int64)
    column = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_column = column < num_outputs
    from_slot = b + slot * slot_stride + start + column[None, :]
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for begin in range(0, RANK, RANKS):
        rank = begin + tl.arange(0, RANKS)
        is_rank = rank < RANK
        from_row = low + ((place[:, None] * NUM_PARTS + part) * RANK + rank[None, :]).to(tl.int64)
        factors = tl.load(from_row, mask=is_row[:, None] & is_rank[None, :], other=0.0)
        from_rank = from_slot + rank[:, None].to(tl.int64) * rank_stride
        weights = tl.load(from_rank, mask=is_rank[:, None] & is_column[None, :], other=0.0)
        if WIDENS:
            weights = weights.to(tl.float32)
        total = tl.dot(factors.to(weights.dtype), weights, total, input_precision="ieee")
    to = outputs + row[:, None] * output_stride + start + column[None, :]
    is_there = is_row[:, None] & is_column[None, :]
    found = tl.load(to, mask=is_there, other=0.0)
    tl.store(to, (found.to(tl.float32) + total).to(found.dtype), mask=is_there)
