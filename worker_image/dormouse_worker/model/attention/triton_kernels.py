"""Paged attention and the cache write as Triton kernels. What they are launched with is `triton_backend`'s.

A pool [slots, Hkv, D] holds the keys of all sequences; block b owns the slots [b · size, (b + 1) · size), and a
sequence's block table names its blocks in order. Position p of a sequence so lies at slot table[p // size] · size +
p % size, which each program computes for the KEYS positions that it reads next (paged attention: Kwon et al. 2023,
arXiv 2309.06180).

One program owns a *tile*: up to some consecutive queries of one sequence, with all G query heads of one key head, so
that a key is read once for all of them. Its rows, query by query:

    row      0 … G - 1          G … 2G - 1         …
    query    first              first + 1          …      positions p, p + 1, …
    head     kv · G … + G - 1   kv · G … + G - 1   …

    keys     ┊ never read ┊ [begin ··· KEYS ··· KEYS ··· stop) ┊ future ┊   begin = p - window + 1, stop = p + queries

It walks over the keys with an online softmax in base 2 (FlashAttention-2: Dao 2023, arXiv 2307.08691): `best` is the
largest score so far, `total` the sum of the weights relative to it, `sums` the weighted values.

A tile of one query (decode) has too few rows to fill a device, so its keys are divided among several programs, and a
second kernel joins what they found (Flash-Decoding: Dao et al. 2023, pytorch.org/blog/flash-decoding):

    keys     [begin ─── split 0 ───┊─── split 1 ───┊─ split 2 ─ stop)
    each     its softmax over its own keys, and log2 of its total → joined with the weights 2^(that - the largest)

How long a split is follows from the sequence's own length alone, so a sequence's result is the same to the last bit
in any batch. Everything is masked to the true head sizes; tables and pools are never read outside [begin, stop).
Annotations are read by Triton: a parameter is a value of the launch, or a `tl.constexpr` that is compiled in. A mask
never joins a vector and a scalar comparison by `&`, which the interpreter of triton 3.9 turns into integers.

Pools of 8 bits are of rows of `cache_rows`, so KEY_ROW > KEY_SIZE. Their numbers, whole ones or floats, are multiplied
as they are, exact in bfloat16; scales are applied to scores and weights.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dormouse_worker.model.attention.triton_rows import mix, numbers_of, scaled, store_rounded

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def write_cache(
    key,
    value,
    slots,
    key_pool,
    value_pool,
    key_row_stride,
    key_head_stride,
    value_row_stride,
    value_head_stride,
    NUM_HEADS: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    KEY_ROW: tl.constexpr,
    VALUE_ROW: tl.constexpr,
    IS_ROUNDED: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    MIX_STEPS: tl.constexpr,
):
    """Store one head of one row, programs [T, Hkv]; a row with slot -1 is a dummy and stored nowhere."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    at = slot * NUM_HEADS + head
    column = tl.arange(0, KEY_PAD)[None, :]
    limit = tl.where(slot >= 0, KEY_SIZE, 0)
    found = tl.load(key + row * key_row_stride + head * key_head_stride + column, mask=column < limit, other=0.0)
    if IS_ROUNDED:
        mixed = mix(found.to(tl.float32), 1, KEY_PAD, MIX_STEPS)
        store_rounded(mixed, key_pool + at * KEY_ROW, limit, KEY_SIZE, KEY_PAD, IS_FLOAT)
    else:
        tl.store(key_pool + at * KEY_ROW + column, found, mask=column < limit)
    column = tl.arange(0, VALUE_PAD)[None, :]
    limit = tl.where(slot >= 0, VALUE_SIZE, 0)
    found = tl.load(value + row * value_row_stride + head * value_head_stride + column, mask=column < limit, other=0.0)
    if IS_ROUNDED:
        store_rounded(found.to(tl.float32), value_pool + at * VALUE_ROW, limit, VALUE_SIZE, VALUE_PAD, IS_FLOAT)
    else:
        tl.store(value_pool + at * VALUE_ROW + column, found, mask=column < limit)


@triton.jit(do_not_specialize=["window", "table_stride"])
def attend_tiles(
    output,
    split_totals,
    query,
    key_pool,
    value_pool,
    sinks,
    tiles,
    tables,
    scale,
    soft_cap,
    window,
    query_row_stride,
    query_head_stride,
    table_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    KEY_ROW: tl.constexpr,
    VALUE_ROW: tl.constexpr,
    IS_ROUNDED: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    MIX_STEPS: tl.constexpr,
    MIX_FACTOR: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    WIDENS: tl.constexpr,
):
    """Attend with one tile and one key head, programs [tiles, Hkv, splits].

    Tiles are [sequence, first row, first position, queries] each, queries · G ≤ ROWS; a dummy has no queries. Without
    splits the output is [T, Hq, Dv]; with splits it is [tiles, Hq, splits, Dv] in float32, and split_totals are
    [tiles, Hq, splits].
    """
    tile = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    sequence = tl.load(tiles + tile * 4).to(tl.int64)
    first_row = tl.load(tiles + tile * 4 + 1).to(tl.int64)
    first_position = tl.load(tiles + tile * 4 + 2)
    num_queries = tl.load(tiles + tile * 4 + 3)

    row = tl.arange(0, ROWS)
    place = row // GROUP
    head = kv_head * GROUP + row % GROUP
    is_row = place < num_queries
    position = first_position + place

    begin = tl.maximum(first_position - window + 1, 0)
    stop = first_position + num_queries
    split = tl.program_id(2)
    if IS_SPLIT:
        share = tl.cdiv(tl.cdiv(stop - begin, MAX_SPLITS), KEYS) * KEYS
        length = tl.maximum(share, MIN_SPLIT)
        begin = begin + split * length
        stop = tl.minimum(stop, begin + length)

    key_column = tl.arange(0, KEY_PAD)
    value_column = tl.arange(0, VALUE_PAD)
    query_at = (first_row + place)[:, None] * query_row_stride + head[:, None] * query_head_stride
    queries = tl.load(
        query + query_at + key_column[None, :], mask=is_row[:, None] & (key_column < KEY_SIZE)[None, :], other=0.0
    )
    if MIX_STEPS > 0:
        queries = (mix(queries.to(tl.float32), ROWS, KEY_PAD, MIX_STEPS) * MIX_FACTOR).to(queries.dtype)
    if WIDENS:
        queries = queries.to(tl.float32)

    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, VALUE_PAD], tl.float32)
    if HAS_SINKS:  # the weight of no value, which the first split takes
        takes_sink = place < tl.where(split == 0, num_queries, 0)
        sink = tl.load(sinks + head, mask=takes_sink, other=0.0).to(tl.float32) * LOG2_E
        best = tl.where(takes_sink, sink, best)
        total = tl.where(takes_sink, 1.0, total)

    for start in range(begin, stop, KEYS):
        key_position = start + tl.arange(0, KEYS)
        is_key = key_position < stop
        block = tl.load(tables + sequence * table_stride + key_position // BLOCK_SIZE, mask=is_key, other=0)
        slot = block.to(tl.int64) * BLOCK_SIZE + key_position % BLOCK_SIZE
        pool_row = slot * NUM_KV_HEADS + kv_head
        keys = tl.load(
            key_pool + pool_row[None, :] * KEY_ROW + key_column[:, None],
            mask=is_key[None, :] & (key_column < KEY_SIZE)[:, None],
            other=0.0,
        )
        keys = numbers_of(keys, IS_FLOAT).to(queries.dtype)
        scores = tl.dot(queries, keys, input_precision="ieee") * scale
        scores = scaled(scores, key_pool + pool_row * KEY_ROW, KEY_SIZE, is_key, IS_ROUNDED)
        if HAS_SOFT_CAP:
            scores = soft_cap * (2.0 * tl.sigmoid(2.0 * scores / soft_cap) - 1.0)  # = cap · tanh(score / cap)
        distance = position[:, None] - key_position[None, :]
        is_seen = is_key[None, :] & (distance >= 0) & (distance < window)
        scores = tl.where(is_seen, scores * LOG2_E, float("-inf"))

        higher = tl.maximum(best, tl.max(scores, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)  # a row that sees none of these keys
        decay = tl.exp2(best - finite)
        weights = tl.exp2(scores - finite[:, None])
        values = tl.load(
            value_pool + pool_row[:, None] * VALUE_ROW + value_column[None, :],
            mask=is_key[:, None] & (value_column < VALUE_SIZE)[None, :],
            other=0.0,
        )
        total = total * decay + tl.sum(weights, 1)
        weights = scaled(weights, value_pool + pool_row * VALUE_ROW, VALUE_SIZE, is_key, IS_ROUNDED)
        if IS_ROUNDED:
            values = numbers_of(values, IS_FLOAT).to(
                queries.dtype if queries.dtype == tl.float32 else tl.bfloat16
            )  # float16 ends at 6e-8
        weights = weights.to(values.dtype)
        if WIDENS:
            weights = weights.to(tl.float32)
            values = values.to(tl.float32)
        sums = sums * decay[:, None] + tl.dot(weights, values, input_precision="ieee")
        best = higher

    divisor = tl.where(total == 0.0, 1.0, total)
    result = sums / divisor[:, None]
    num_heads = NUM_KV_HEADS * GROUP
    is_value = (value_column < VALUE_SIZE)[None, :]
    if IS_SPLIT:
        at = (tile * num_heads + head) * tl.num_programs(2) + split
        is_head = row < GROUP
        tl.store(split_totals + at, tl.where(total == 0.0, float("-inf"), best + tl.log2(divisor)), mask=is_head)
        is_used = row < tl.where(begin < stop, GROUP, 0)  # what a split without keys leaves behind is never read
        tl.store(output + at[:, None] * VALUE_SIZE + value_column[None, :], result, mask=is_used[:, None] & is_value)
    else:
        at = (first_row + place) * num_heads + head
        tl.store(
            output + at[:, None] * VALUE_SIZE + value_column[None, :],
            result.to(output.dtype.element_ty),
            mask=is_row[:, None] & is_value,
        )


@triton.jit(do_not_specialize=["num_splits"])
def join_splits(
    output,
    parts,
    split_totals,
    tiles,
    num_splits,
    VALUE_SIZE: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
):
    """Join one head of one tile of one query, programs [tiles, Hq]; a dummy's output is zeros.

    SPLITS_PAD does not follow the batch, so neither does the order in which the splits are added.
    """
    tile = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    num_heads = tl.num_programs(1)
    row = tl.load(tiles + tile * 4 + 1).to(tl.int64)
    split = tl.arange(0, SPLITS_PAD)
    at = (tile * num_heads + head) * num_splits + split
    totals = tl.load(split_totals + at, mask=split < num_splits, other=float("-inf"))
    best = tl.max(totals, 0)
    weights = tl.exp2(totals - tl.where(best == float("-inf"), 0.0, best))
    total = tl.sum(weights, 0)

    column = tl.arange(0, VALUE_PAD)
    is_value = column < VALUE_SIZE
    is_used = totals > float("-inf")
    part = tl.load(
        parts + at[:, None] * VALUE_SIZE + column[None, :], mask=is_used[:, None] & is_value[None, :], other=0.0
    )
    result = tl.sum(part * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    output_at = (row * num_heads + head) * VALUE_SIZE + column
    tl.store(output + output_at, result.to(output.dtype.element_ty), mask=is_value)
