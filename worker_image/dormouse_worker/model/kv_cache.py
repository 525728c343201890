"""The paged cache's tensors: one key and one value pool per layer. Which block belongs to whom is the allocator's."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
    """What a block stores, over all layers of this rank."""

    layers: tuple[LayerSpec, ...]
    block_size: int

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block over all layers."""
        return self.block_size * sum(layer.bytes_per_token for layer in self.layers)


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's pools by slot: key [slots, Hkv, D] and value [slots, Hkv, Dv].

    Slot = block × block_size + offset: block b owns the slots [b · block_size, (b + 1) · block_size).
    """

    key: torch.Tensor
    value: torch.Tensor

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store the rows of key [T, Hkv, D] and value [T, Hkv, Dv] at slots [T]."""
        self.key.index_copy_(0, slots, key)
        self.value.index_copy_(0, slots, value)


class KVCache:
    """Owns the pools of all layers. Zero-filled, so that no reader meets a NaN that nobody wrote."""

    def __init__(self, spec: CacheSpec, num_blocks: int, device: torch.device) -> None:
        """Allocate. Raises RuntimeError or torch.OutOfMemoryError if the device has not the memory."""
        self.spec = spec
        self.num_blocks = num_blocks
        num_slots = num_blocks * spec.block_size
        self.layers = [
            LayerCache(
                torch.zeros(num_slots, layer.num_kv_heads, layer.key_size, dtype=layer.dtype, device=device),
                torch.zeros(num_slots, layer.num_kv_heads, layer.value_size, dtype=layer.dtype, device=device),
            )
            for layer in spec.layers
        ]

    def __repr__(self) -> str:
        return f"KVCache({self.num_blocks} blocks × {self.spec.block_bytes} bytes, {len(self.layers)} layers)"
