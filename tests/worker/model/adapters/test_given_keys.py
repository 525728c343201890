"""Which caches take keys and values that an adapter brings, and where these come to lie."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from dormouse_worker.common.layout import Layout
from dormouse_worker.files.soft_prompt_config import KeyShape
from dormouse_worker.model.adapters.given_keys import give_keys, key_shape
from dormouse_worker.model.kv_cache import CacheSpec, KVCache, LayerSpec

LAYER = LayerSpec(num_kv_heads=2, key_size=8, value_size=8, dtype=torch.float32)
TOLERANCES = {"auto": 0, "int8": 0.05, "fp8": 0.2}


def test_a_plain_cache_takes_them():
    assert key_shape([LAYER, LAYER], [None, None], Layout()) == KeyShape(2, 2, 8)


@pytest.mark.parametrize(
    ("layers", "windows", "layout", "words"),
    [
        ([LAYER] * 2, [None, None], Layout(tensor=2), "not divided among ranks"),
        ([LAYER] * 2, [None, 4], Layout(), "forget what is behind a window"),
        ([LAYER, dataclasses.replace(LAYER, num_kv_heads=1)], [None, None], Layout(), "of several sizes"),
        ([dataclasses.replace(LAYER, value_size=4)], [None], Layout(), "of several sizes"),
    ],
    ids=str,
)
def test_what_is_not_brought_is_said(layers, windows, layout, words):
    assert words in key_shape(layers, windows, layout)


@pytest.mark.parametrize("stored", ["auto", "int8", "fp8"])
def test_they_lie_in_the_sequences_blocks_and_nowhere_else(stored):
    cache = KVCache(CacheSpec.of((dataclasses.replace(LAYER, stored=stored),) * 2, 4), 5, None)
    keys = torch.randn(6, 2, 2, 2, 8)
    give_keys(cache, np.array([3, 1]), keys)
    for layer in range(2):
        found = cache.layer(layer).read(torch.tensor([[12, 13, 14, 15, 4, 5]]), torch.float32)
        for kind in range(2):
            torch.testing.assert_close(found[kind][0], keys[:, layer, kind], atol=TOLERANCES[stored], rtol=0)
        assert cache.layer(layer).key.count_nonzero(dim=(1, 2)).bool().nonzero().flatten().tolist() == [
            *range(4, 6),
            *range(12, 16),
        ]
