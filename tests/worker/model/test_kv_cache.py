"""The pools: sizes and writing."""

import torch

from dormouse_worker.model.kv_cache import CacheSpec, KVCache, LayerSpec

SPEC = CacheSpec((LayerSpec(2, 8, 4, torch.float32), LayerSpec(1, 8, 8, torch.bfloat16)), block_size=4)


def test_a_block_is_the_sum_over_layers_that_may_differ():
    assert SPEC.block_bytes == 4 * (2 * 12 * 4 + 1 * 16 * 2)


def test_the_pools_take_exactly_what_the_blocks_promise():
    cache = KVCache(SPEC, 3, torch.device("cpu"))
    assert sum(layer.key.nbytes + layer.value.nbytes for layer in cache.layers) == 3 * SPEC.block_bytes
    assert repr(cache) == f"KVCache(3 blocks × {SPEC.block_bytes} bytes, 2 layers)"


def test_rows_are_stored_at_their_slots_and_nowhere_else():
    layer = KVCache(SPEC, 3, torch.device("cpu")).layers[0]
    layer.write(torch.tensor([9, 0]), torch.ones(2, 2, 8), torch.full((2, 2, 4), 2.0))
    assert layer.key.sum((1, 2)).nonzero().flatten().tolist() == [0, 9]
    assert layer.value.sum((1, 2))[[0, 9]].tolist() == [16.0, 16.0]
