"""Blocks as bytes: another cache has the same numbers afterwards, and what they mean has a name."""

import dataclasses

import pytest
import torch

from dormouse_worker.model.cache_blocks import CacheBlocks, make_realm
from dormouse_worker.model.kv_cache import CacheSpec, KVCache, LayerSpec

LAYER = LayerSpec(2, 8, 4, torch.bfloat16)
SPECS = {
    "unlike": CacheSpec.of((LayerSpec(2, 8, 4, torch.float32), LayerSpec(1, 8, 8, torch.bfloat16)), block_size=4),
    "windows": CacheSpec.of((LAYER,) * 4, block_size=4, windows=(None, 8, None, 8)),
    "int8": CacheSpec.of((dataclasses.replace(LAYER, stored="int8"),) * 2, block_size=4),
    "fp8": CacheSpec.of((dataclasses.replace(LAYER, stored="fp8"),) * 2, block_size=4),
}


def filled(spec, num_blocks, seed):
    generator = torch.Generator().manual_seed(seed)
    cache = KVCache(spec, num_blocks, torch.device("cpu"))
    for rows in cache.by_block():
        rows.copy_(torch.randn(rows.shape, generator=generator).to(rows.dtype))
    return cache


def test_of_a_cache_with_a_draft_model_the_targets_part_is_kept_and_the_draft_model_hears_of_what_comes():
    own, drafts = CacheSpec.of((LAYER,) * 2, block_size=4), CacheSpec.of((LayerSpec(1, 8, 8, torch.float32),), 4)
    cache, heard = filled(own.beside(drafts), 4, seed=1), []
    part, alone = cache.part(0, 2), CacheBlocks(filled(own, 3, seed=2), b"r")
    assert make_realm(part.spec) == make_realm(own) != make_realm(cache.spec)
    *_, keys, values = (rows.clone() for rows in cache.by_block())
    blocks = CacheBlocks(part, b"r", heard.extend)
    blocks.write_blocks([1], memoryview(bytearray(alone.read_blocks([2])[0])))
    assert bytes(blocks.read_blocks([1])[0]) == bytes(alone.read_blocks([2])[0])
    assert heard == [1]
    *_, keys_now, values_now = cache.by_block()
    assert torch.equal(keys, keys_now)
    assert torch.equal(values, values_now)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_blocks_come_back_into_other_places_of_another_cache(spec):
    ours, theirs = filled(spec, 4, seed=1), filled(spec, 3, seed=2)
    before = [rows.clone() for rows in theirs.by_block()]
    source, target = CacheBlocks(ours, b"r"), CacheBlocks(theirs, b"r")
    copies = source.read_blocks([3, 0])
    assert [copy.nbytes for copy in copies] == [source.block_bytes] * 2
    assert source.block_bytes == spec.block_bytes // len(spec.groups)
    target.write_blocks([1, 2], memoryview(bytearray(b"".join(copies))))
    for rows, old, new in zip(ours.by_block(), before, theirs.by_block(), strict=True):
        assert torch.equal(new[1], rows[3])
        assert torch.equal(new[2], rows[0])
        others = [0, *range(3, len(new))]
        assert torch.equal(new[others], old[others])


def test_what_was_read_does_not_change_with_the_cache():
    cache = filled(SPECS["unlike"], 2, seed=1)
    (copy,) = CacheBlocks(cache, b"r").read_blocks([0])
    before = bytes(copy)
    for rows in cache.by_block():
        rows.zero_()
    assert bytes(copy) == before


def test_everything_that_decides_what_bytes_mean_is_in_the_realm():
    spec = SPECS["windows"]
    specs = [
        *SPECS.values(),
        dataclasses.replace(spec, block_size=8),
        dataclasses.replace(spec, first_layer=1),
        CacheSpec.of((LAYER,) * 4, block_size=4),
        CacheSpec.of((dataclasses.replace(LAYER, dtype=torch.float16),) * 4, 4, (None, 8, None, 8)),
        CacheSpec.of((dataclasses.replace(LAYER, stored="int8"),) * 4, 4, (None, 8, None, 8)),
    ]
    realms = [make_realm(each, "weights") for each in specs] + [make_realm(spec, "other weights"), make_realm(spec)]
    assert len(set(realms)) == len(realms)
    assert make_realm(spec, "weights") == realms[1]
    assert {len(realm) for realm in realms} == {32}


def test_it_says_what_it_is():
    assert repr(CacheBlocks(filled(SPECS["windows"], 2, 1), bytes(32))).endswith("layers), 000000000000)")
