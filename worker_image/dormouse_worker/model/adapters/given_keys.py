"""Keys and values that an adapter brings for the first tokens of a sequence: whether it can, and how they get there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dormouse_worker.common.layout import Layout
from dormouse_worker.files.soft_prompt_config import KeyShape
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.kv_cache import KVCache, LayerSpec
from dormouse_worker.model.to_device import to_device


def key_shape(layers: Sequence[LayerSpec], windows: Sequence[int | None], layout: Layout) -> KeyShape | str:
    """Return what a base's cache keeps of a token, or why no adapter can bring it."""
    if layout.world_size > 1:
        return "these are not divided among ranks: serve it on one"
    if any(window is not None for window in windows):
        return "layers of this base forget what is behind a window"
    first = layers[0]
    if any(each != first for each in layers) or first.key_size != first.value_size:
        return "layers of this base keep keys and values of several sizes"
    return KeyShape(len(layers), first.num_kv_heads, first.key_size)


@torch.inference_mode()
def give_keys(cache: KVCache, blocks: Ints, keys: torch.Tensor) -> None:
    """Write the keys and values [tokens, layers, 2, heads, head size] of a sequence's first tokens into its blocks.

    Blocks that others share have these very numbers already.
    """
    size, places = cache.spec.block_size, np.arange(len(keys))
    slots = to_device(blocks[places // size] * size + places % size, keys.device)
    for layer in range(keys.shape[1]):
        cache.layer(layer).write(slots, keys[:, layer, 0], keys[:, layer, 1])
