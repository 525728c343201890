"""The paged cache's tensors: pools of keys and values. Which block belongs to whom is the scheduler's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dormouse_worker.common.settings import AUTO
from dormouse_worker.engine.batch import Moves
from dormouse_worker.model.cache_rows import SCALE_BYTES, plain_keys, plain_values, round_keys, round_values, row_size
from dormouse_worker.model.device.arena import ALIGNMENT_BYTES, Arena, round_up
from dormouse_worker.model.layer_groups import LayerGroup, group_layers
from dormouse_worker.model.tensors import Dtype, Tensor, copy_of, int8_beside, name_of, put, take, zeros

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What one layer stores per token."""

    num_kv_heads: int
    key_size: int
    value_size: int
    dtype: Dtype  # of the keys and values that come
    stored: str = AUTO  # as they come, or how `cache_rows` makes them of 8 bits

    @property
    def is_rounded(self) -> bool:
        """Return whether what is stored has 8 bits."""
        return self.stored != AUTO

    @property
    def stored_dtype(self) -> Dtype:
        """Return the type of the pools."""
        return int8_beside(self.dtype) if self.is_rounded else self.dtype

    @property
    def kind(self) -> str:
        """Return the name of what is stored, and of what it was before."""
        return f"{name_of(self.dtype)} in {self.stored}" if self.is_rounded else name_of(self.dtype)

    @property
    def stored_sizes(self) -> tuple[int, int]:
        """Return the numbers of the pools' type that one head's key takes, and its value."""
        sizes = self.key_size, self.value_size
        return (row_size(sizes[0]), row_size(sizes[1])) if self.is_rounded else sizes

    @property
    def bytes_per_token(self) -> int:
        """Return the bytes of one token's key and value."""
        return self.num_kv_heads * sum(self.stored_sizes) * int(self.stored_dtype.itemsize)


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """What the cache stores, over all layers of this rank."""

    layers: tuple[LayerSpec, ...]
    block_size: int
    groups: tuple[LayerGroup, ...]  # of places in `layers`
    first_layer: int = 0  # of the model's; not 0 where a pipeline's earlier stages hold some

    @classmethod
    def of(
        cls,
        layers: tuple[LayerSpec, ...],
        block_size: int,
        windows: tuple[int | None, ...] = (),
        *,
        first_layer: int = 0,
    ) -> CacheSpec:
        """Return the spec of layers with these windows; () = none has one."""
        return cls(layers, block_size, group_layers(layers, windows or (None,) * len(layers)), first_layer)

    def beside(self, other: CacheSpec) -> CacheSpec:
        """Return the spec of these layers and of another model's behind them, which see the same tokens.

        They share one table, so nothing is given back behind a window.
        """
        assert self.block_size == other.block_size, "one table serves both"
        layers = self.layers + other.layers
        return CacheSpec(layers, self.block_size, (LayerGroup(tuple(range(len(layers)))),), self.first_layer)

    def part(self, first: int, end: int | None) -> CacheSpec:
        """Return the spec of the layers [first, end) alone, of several models' that share one table."""
        assert len(self.groups) == 1, "they share one table"
        layers = self.layers[first:end]
        return CacheSpec(layers, self.block_size, (LayerGroup(tuple(range(len(layers)))),), self.first_layer)

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block over all layers."""
        return self.block_size * sum(layer.bytes_per_token for layer in self.layers)

    @property
    def suffix(self) -> str:
        """Return what a compute path says of it."""
        return next((f", cache {layer.stored}" for layer in self.layers if layer.is_rounded), "")

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Return each group's window."""
        return tuple(group.window for group in self.groups)


@dataclass(frozen=True, slots=True, repr=False)
class LayerCache:
    """One pool by slot: key [slots, Hkv, D] and value [slots, Hkv, Dv]; rounded ones are of rows of `cache_rows`.

    Slot = block × block_size + offset: block b owns the slots [b · block_size, (b + 1) · block_size).
    """

    key: Tensor
    value: Tensor
    stored: str = AUTO  # see `LayerSpec`

    def __repr__(self) -> str:
        """Show shapes only: while the cache sleeps, a look at what is in it would kill the process."""
        return f"LayerCache(key={tuple(self.key.shape)}, value={tuple(self.value.shape)})"

    @property
    def is_rounded(self) -> bool:
        """Return whether what is stored has 8 bits."""
        return self.stored != AUTO

    @property
    def sizes(self) -> tuple[int, int]:
        """Return the numbers of one head's key and value."""
        added = SCALE_BYTES if self.is_rounded else 0
        return self.key.shape[-1] - added, self.value.shape[-1] - added

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store the rows of key [T, Hkv, D] and value [T, Hkv, Dv] at slots [T]."""
        if self.is_rounded:
            key, value = round_keys(key, self.stored), round_values(value, self.stored)
        self.key.index_copy_(0, slots, key)
        self.value.index_copy_(0, slots, value)

    def read(self, slots: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys [B, L, Hkv, D] and values [B, L, Hkv, Dv] at slots [B, L], of the type that was stored."""
        key, value = (_gather(pool, slots) for pool in (self.key, self.value))
        if not self.is_rounded:
            return key, value
        return plain_keys(key, self.stored, dtype), plain_values(value, self.stored, dtype)


def _gather(pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Return [B, L, Hkv, D] of a pool [slots, Hkv, D]; index_select is several times faster than indexing."""
    return pool.index_select(0, slots.view(-1)).view(*slots.shape, *pool.shape[1:])


class KVCache:
    """Owns the pools. Zero-filled, so that no reader meets a NaN that nobody wrote.

    A model with G layer groups has one pool for each place in a group, with G × num_blocks blocks; a table of any
    group may hold any of them.
    """

    def __init__(
        self, spec: CacheSpec, num_blocks: int, device: torch.device | None, *, arena: Arena | None = None
    ) -> None:
        """Lay the pools out in an arena that is mapped and zero, or allocate them; None = in the host's memory.

        Raises RuntimeError or torch.OutOfMemoryError if the device has not the memory to allocate.
        """
        self.spec = spec
        self.num_blocks = num_blocks
        tensors = iter(_views(spec, num_blocks, arena) if arena else _zeros(spec, num_blocks, device))
        stored = [spec.layers[layer].stored for layer in spec.groups[0].layers]
        self.pools = [LayerCache(*each) for each in zip(tensors, tensors, stored, strict=True)]
        first = spec.first_layer
        self._places = {first + layer: place for group in spec.groups for place, layer in enumerate(group.layers)}
        self._group_of = {first + layer: index for index, group in enumerate(spec.groups) for layer in group.layers}

    def __repr__(self) -> str:
        return f"KVCache({self.num_blocks} blocks × {self.spec.block_bytes} bytes, {len(self.spec.layers)} layers)"

    def layer(self, layer: int) -> LayerCache:
        """Return the pool of one of the model's layers."""
        return self.pools[self._places[layer]]

    def group_of(self, layer: int) -> int:
        """Return which group's block table a layer uses."""
        return self._group_of[layer]

    def part(self, first: int, end: int | None = None) -> KVCache:
        """Return the same cache as the model sees it whose layers are [first, end) here; owns nothing."""
        return _Part(self, first, end)

    def by_block(self) -> Iterator[Tensor]:
        """Yield every pool's keys, then its values, as views [blocks, block_size, Hkv, D]."""
        for pool in self.pools:
            for rows in (pool.key, pool.value):
                yield rows.reshape(-1, self.spec.block_size, *rows.shape[1:])

    def copy_blocks(self, source: KVCache, moves: Moves) -> None:
        """Copy blocks (from, to) of another cache of the same spec, on whatever device, into this one."""
        if not moves:
            return
        origins, targets = zip(*moves, strict=True)
        for into, out in zip(self.by_block(), source.by_block(), strict=True):
            put(into, targets, take(out, origins))


class _Part(KVCache):
    """Some of a cache's layers, counted from 0."""

    def __init__(self, whole: KVCache, first: int, end: int | None) -> None:
        self.spec = whole.spec.part(first, end)
        self.num_blocks, self.pools = whole.num_blocks, whole.pools[first:end]
        self._places = {layer: layer for layer in range(len(self.pools))}
        self._group_of = dict.fromkeys(self._places, 0)


@contextmanager
def preserved(cache: KVCache | None, num_blocks: int) -> Iterator[None]:
    """Let the first blocks of a cache be written to, and put back what was in them at the end, whatever is raised.

    Nothing happens to None. They are copied on the device itself, so they should be few.
    """
    first = [] if cache is None else [rows[:num_blocks] for rows in cache.by_block()]
    before = [copy_of(rows) for rows in first]
    try:
        yield
    finally:
        for rows, contents in zip(first, before, strict=True):
            rows[:] = contents


def arena_bytes(spec: CacheSpec, num_blocks: int) -> int:
    """Return the size of an arena for the pools."""
    return sum(round_up(num_bytes, ALIGNMENT_BYTES) for num_bytes in _sizes(spec, num_blocks))


def smallest_pool_bytes(spec: CacheSpec, num_blocks: int) -> int:
    """Return the size of the smallest of the tensors."""
    return min(_sizes(spec, num_blocks))


def _views(spec: CacheSpec, num_blocks: int, arena: Arena) -> Iterator[Tensor]:
    """Yield each pool's key and value, one behind the other, each aligned."""
    offset = 0
    for (shape, dtype), num_bytes in zip(_shapes(spec, num_blocks), _sizes(spec, num_blocks), strict=True):
        yield arena.tensor(offset, shape, dtype)
        offset += round_up(num_bytes, ALIGNMENT_BYTES)


def _zeros(spec: CacheSpec, num_blocks: int, device: torch.device | None) -> Iterator[Tensor]:
    return (zeros(shape, dtype, device) for shape, dtype in _shapes(spec, num_blocks))


def _sizes(spec: CacheSpec, num_blocks: int) -> Iterator[int]:
    return (math.prod(shape) * dtype.itemsize for shape, dtype in _shapes(spec, num_blocks))


def _shapes(spec: CacheSpec, num_blocks: int) -> Iterator[tuple[tuple[int, ...], Dtype]]:
    num_slots = num_blocks * len(spec.groups) * spec.block_size
    for layer in (spec.layers[index] for index in spec.groups[0].layers):
        for size in layer.stored_sizes:
            yield (num_slots, layer.num_kv_heads, size), layer.stored_dtype
