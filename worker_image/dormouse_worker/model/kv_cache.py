"""The paged cache's tensors: pools of keys and values. Which block belongs to whom is the scheduler's."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dormouse_worker.engine.batch import Moves
from dormouse_worker.model.layer_groups import LayerGroup, group_layers


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What one layer stores per token."""

    num_kv_heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Return the bytes of one token's key and value."""
        return self.num_kv_heads * (self.key_size + self.value_size) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """What the cache stores, over all layers of this rank."""

    layers: tuple[LayerSpec, ...]
    block_size: int
    groups: tuple[LayerGroup, ...]

    @classmethod
    def of(cls, layers: tuple[LayerSpec, ...], block_size: int, windows: tuple[int | None, ...] = ()) -> CacheSpec:
        """Return the spec of layers with these windows; () = none has one."""
        return cls(layers, block_size, group_layers(layers, windows or (None,) * len(layers)))

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block over all layers."""
        return self.block_size * sum(layer.bytes_per_token for layer in self.layers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Return each group's window."""
        return tuple(group.window for group in self.groups)


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One pool by slot: key [slots, Hkv, D] and value [slots, Hkv, Dv].

    Slot = block × block_size + offset: block b owns the slots [b · block_size, (b + 1) · block_size).
    """

    key: torch.Tensor
    value: torch.Tensor

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store the rows of key [T, Hkv, D] and value [T, Hkv, Dv] at slots [T]."""
        self.key.index_copy_(0, slots, key)
        self.value.index_copy_(0, slots, value)


class KVCache:
    """Owns the pools. Zero-filled, so that no reader meets a NaN that nobody wrote.

    A model with G layer groups has one pool for each place in a group, with G × num_blocks blocks; a table of any
    group may hold any of them.
    """

    def __init__(self, spec: CacheSpec, num_blocks: int, device: torch.device) -> None:
        """Allocate. Raises RuntimeError or torch.OutOfMemoryError if the device has not the memory."""
        self.spec = spec
        self.num_blocks = num_blocks
        num_slots = num_blocks * len(spec.groups) * spec.block_size
        self.pools = [_pool(spec.layers[layer], num_slots, device) for layer in spec.groups[0].layers]
        self._places = {layer: place for group in spec.groups for place, layer in enumerate(group.layers)}
        self._group_of = {layer: index for index, group in enumerate(spec.groups) for layer in group.layers}

    def __repr__(self) -> str:
        return f"KVCache({self.num_blocks} blocks × {self.spec.block_bytes} bytes, {len(self.spec.layers)} layers)"

    def layer(self, layer: int) -> LayerCache:
        """Return the pool of a layer."""
        return self.pools[self._places[layer]]

    def group_of(self, layer: int) -> int:
        """Return which group's block table a layer uses."""
        return self._group_of[layer]

    def copy_blocks(self, source: KVCache, moves: Moves) -> None:
        """Copy blocks (from, to) of another cache of the same spec, on whatever device, into this one."""
        if not moves:
            return
        origins, targets = (torch.tensor(blocks) for blocks in zip(*moves, strict=True))
        for ours, theirs in zip(self.pools, source.pools, strict=True):
            for into, out in ((ours.key, theirs.key), (ours.value, theirs.value)):
                rows = out.view(-1, self.spec.block_size, *out.shape[1:]).index_select(0, origins.to(out.device))
                by_block = into.view(-1, self.spec.block_size, *into.shape[1:])
                by_block.index_copy_(0, targets.to(into.device), rows.to(into.device))


def _pool(spec: LayerSpec, num_slots: int, device: torch.device) -> LayerCache:
    key = torch.zeros(num_slots, spec.num_kv_heads, spec.key_size, dtype=spec.dtype, device=device)
    value = torch.zeros(num_slots, spec.num_kv_heads, spec.value_size, dtype=spec.dtype, device=device)
    return LayerCache(key, value)
