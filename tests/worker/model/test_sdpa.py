"""The reference attention against the textbook formula, computed token by token without any cache."""

import numpy as np
import pytest
import torch

from dormouse_worker.model.attention.interface import AttentionMetadata
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import CacheSpec, KVCache, LayerSpec

BLOCK_SIZE, NUM_BLOCKS, KV_HEADS, HEADS, SIZE = 4, 32, 2, 6, 8
SPANS = [(0, 5), (0, 1), (7, 8), (3, 9), (12, 13), (20, 21), (0, 17)]  # fresh, chunked and decoding sequences


def textbook(call, query, key, value, first_position, last_seen=None):
    """Attend from query [Q, Hq, D] to key [L, Hkv, D], one query and one head at a time, in float64."""
    output = torch.zeros(query.shape[0], HEADS, value.shape[-1], dtype=torch.float64)
    for i in range(query.shape[0]):
        position = first_position + i
        start = 0 if call.window is None else max(0, position - call.window + 1)
        end = (position if last_seen is None else last_seen[i]) + 1
        for head in range(HEADS):
            keys = key[start:end, head // (HEADS // KV_HEADS)].double()
            scores = keys @ query[i, head].double() * call.scale
            if call.soft_cap is not None:
                scores = call.soft_cap * torch.tanh(scores / call.soft_cap)
            if call.sinks is not None:
                scores = torch.cat([scores, call.sinks[head].double()[None]])
            weights = scores.softmax(0)[: len(keys)]
            output[i, head] = weights @ value[start:end, head // (HEADS // KV_HEADS)].double()
    return output.float()


def see_an_image(start, end):
    """Return up to which position each of [start, end) sees where an image has three of them."""
    return [max(position, min(start + 3, end - 1)) if position > start else position for position in range(start, end)]


def describe(spans, tables, window=None, *, looks_ahead=False):
    """Return the metadata of sequences that compute [start, end) with these block tables."""
    starts, ends = np.array(spans).T
    rows = [(n, position) for n, (start, end) in enumerate(spans) for position in range(start, end)]
    padded = [table + [0] * (max(map(len, tables)) - len(table)) for table in tables]
    return AttentionMetadata(
        query_starts=np.concatenate([[0], np.cumsum(ends - starts)]),
        context_lens=ends,
        block_tables=np.array(padded),
        slot_mapping=np.array([tables[n][p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for n, p in rows]),
        positions=np.array([position for _, position in rows]),
        block_size=BLOCK_SIZE,
        window=window,
        last_seen=np.concatenate([see_an_image(*span) for span in spans]) if looks_ahead else None,
    )


def run_both(call, value_size=SIZE, backend=None, window=None, *, looks_ahead=False):
    """Return what the backend and the textbook say about a batch of all SPANS; `window` = of the layer group."""
    generator = torch.Generator().manual_seed(3)
    spec = CacheSpec.of((LayerSpec(KV_HEADS, SIZE, value_size, torch.float32),), BLOCK_SIZE)
    cache = KVCache(spec, NUM_BLOCKS, torch.device("cpu"))
    blocks = iter(torch.randperm(NUM_BLOCKS, generator=generator).tolist())
    tables, queries, expected = [], [], []
    for start, end in SPANS:
        table = [next(blocks) for _ in range(-(-end // BLOCK_SIZE))]
        tables.append(table)
        key = torch.randn(end, KV_HEADS, SIZE, generator=generator)
        value = torch.randn(end, KV_HEADS, value_size, generator=generator)
        query = torch.randn(end - start, HEADS, SIZE, generator=generator)
        slots = torch.tensor([table[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(end)])
        cache.layer(0).write(slots, key, value)
        queries.append(query)
        last_seen = see_an_image(start, end) if looks_ahead else None
        expected.append(textbook(call, query, key, value, start, last_seen))
    if window is not None:  # what lies wholly behind the window belongs to somebody else by now
        for (start, _), table in zip(SPANS, tables, strict=True):
            table[: max(0, start - window + 1) // BLOCK_SIZE] = [0] * (max(0, start - window + 1) // BLOCK_SIZE)
    metadata = describe(SPANS, tables, window, looks_ahead=looks_ahead)
    plan = (backend or SdpaBackend()).plan(metadata, torch.device("cpu"))
    return plan.attend(call, torch.cat(queries), cache.layer(0)), torch.cat(expected)


SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -0.5])


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("sinks", [None, SINKS], ids=["no-sinks", "sinks"])
def test_it_computes_the_formula(window, soft_cap, sinks):
    actual, expected = run_both(AttentionCall(0, SIZE**-0.5, window, soft_cap, sinks))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("score_elements", [1 << 24, 1])
def test_tokens_of_an_image_see_each_other(window, score_elements):
    backend = SdpaBackend(score_elements=score_elements)
    actual, expected = run_both(AttentionCall(0, SIZE**-0.5, window), backend=backend, looks_ahead=True)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("window", [1, 3, 6, 100])
def test_in_a_group_with_a_window_only_the_window_is_read(window):
    """The tables' entries behind the window are wrong on purpose."""
    actual, expected = run_both(AttentionCall(0, SIZE**-0.5, window), window=window)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def test_sequences_of_equal_length_need_no_mask_and_a_window_of_one_layer_still_counts():
    call = AttentionCall(0, 0.3, window=2)
    spans, tables = [(4, 5), (4, 5)], [[0, 1], [2, 3]]
    plan = SdpaBackend().plan(describe(spans, tables), torch.device("cpu"))
    spec = CacheSpec.of((LayerSpec(KV_HEADS, SIZE, SIZE, torch.float32),), BLOCK_SIZE)
    layer = KVCache(spec, 4, torch.device("cpu")).layer(0)
    key, value, query = torch.randn(16, KV_HEADS, SIZE), torch.randn(16, KV_HEADS, SIZE), torch.randn(2, HEADS, SIZE)
    layer.write(torch.arange(16), key, value)
    for windowed in (call, AttentionCall(0, 0.3)):
        parts = [textbook(windowed, query[n : n + 1], key[8 * n :], value[8 * n :], 4) for n in range(2)]
        torch.testing.assert_close(plan.attend(windowed, query, layer), torch.cat(parts), atol=1e-5, rtol=1e-4)


def test_values_may_be_of_another_size_than_keys():
    actual, expected = run_both(AttentionCall(0, 0.3), value_size=5)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("sinks", [None, SINKS], ids=["no-sinks", "sinks"])
def test_cutting_to_bound_the_memory_changes_nothing(sinks):
    """Groups of one sequence and score matrices of one row."""
    backend = SdpaBackend(gather_tokens=1, score_elements=1)
    actual, expected = run_both(AttentionCall(0, 0.3, sinks=sinks), backend=backend)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def test_a_foreign_nan_in_the_cache_reaches_nobody():
    """What another sequence left behind, even a NaN, is never read: padding repeats the sequence's own last slot."""
    call = AttentionCall(0, 0.3)
    spec = CacheSpec.of((LayerSpec(KV_HEADS, SIZE, SIZE, torch.float32),), BLOCK_SIZE)
    cache = KVCache(spec, 8, torch.device("cpu"))
    for pool in (cache.layer(0).key, cache.layer(0).value):
        pool.fill_(float("nan"))
        pool[[0, 4, 5, 6, 7, 8]] = 1.0  # the slots of a: [0, 1), of b: [4, 9)
    metadata = describe([(0, 1), (4, 5)], [[0], [1, 2]])
    plan = SdpaBackend().plan(metadata, torch.device("cpu"))
    assert torch.equal(plan.attend(call, torch.ones(2, HEADS, SIZE), cache.layer(0)), torch.ones(2, HEADS, SIZE))
