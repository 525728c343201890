"""The pools: sizes and writing."""

import torch

from dormouse_worker.model.kv_cache import CacheSpec, KVCache, LayerSpec

SPEC = CacheSpec.of((LayerSpec(2, 8, 4, torch.float32), LayerSpec(1, 8, 8, torch.bfloat16)), block_size=4)
LAYER = LayerSpec(2, 8, 4, torch.float32)
MIXED = CacheSpec.of((LAYER,) * 4, block_size=4, windows=(None, 8, None, 8))


def test_a_block_is_the_sum_over_layers_that_may_differ():
    assert SPEC.block_bytes == 4 * (2 * 12 * 4 + 1 * 16 * 2)


def test_the_pools_take_exactly_what_the_blocks_promise():
    cache = KVCache(SPEC, 3, torch.device("cpu"))
    assert sum(layer.key.nbytes + layer.value.nbytes for layer in cache.pools) == 3 * SPEC.block_bytes
    assert repr(cache) == f"KVCache(3 blocks × {SPEC.block_bytes} bytes, 2 layers)"


def test_rows_are_stored_at_their_slots_and_nowhere_else():
    layer = KVCache(SPEC, 3, torch.device("cpu")).layer(0)
    layer.write(torch.tensor([9, 0]), torch.ones(2, 2, 8), torch.full((2, 2, 4), 2.0))
    assert layer.key.sum((1, 2)).nonzero().flatten().tolist() == [0, 9]
    assert layer.value.sum((1, 2))[[0, 9]].tolist() == [16.0, 16.0]


def test_layers_at_one_place_of_two_groups_share_a_pool_of_twice_the_blocks():
    cache = KVCache(MIXED, 3, torch.device("cpu"))
    assert MIXED.windows == (None, 8)
    assert sum(pool.key.nbytes + pool.value.nbytes for pool in cache.pools) == 3 * MIXED.block_bytes
    assert [cache.layer(i) is cache.layer(j) for i, j in ((0, 1), (2, 3), (0, 2))] == [True, True, False]
    assert [cache.group_of(layer) for layer in range(4)] == [0, 1, 0, 1]
    assert cache.layer(0).key.shape[0] == 2 * 3 * 4


def test_blocks_go_to_another_cache_and_nothing_else_does():
    device, host = (KVCache(MIXED, count, torch.device("cpu")) for count in (3, 2))
    for number, pool in enumerate(device.pools):
        pool.key.copy_(torch.arange(24.0)[:, None, None] + 100 * number)
        pool.value.copy_(-pool.key[..., :4])
    host.copy_blocks(device, ((5, 0), (1, 2)))
    for number, pool in enumerate(host.pools):
        expected = [*range(20, 24), *[-100 * number] * 4, *range(4, 8), *[-100 * number] * 4]
        assert pool.key[:, 0, 0].tolist() == [100.0 * number + value for value in expected]
        assert pool.value[:4, 1, 3].tolist() == [-100.0 * number - value for value in range(20, 24)]
    host.copy_blocks(device, ())
