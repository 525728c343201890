"""The cache of a model that reads sound. A place is what one window needs, of two kinds.

cross   keys and values of the encoded window, written once, head by head: max_source_positions rows a layer
own     keys and values of the decoder's tokens, written as they come: max_target_positions rows a layer
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from dormouse_worker.model.cache_store import CacheStore
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.kv_cache import CacheSpec, KVCache, LayerCache, LayerSpec


@dataclass(frozen=True, slots=True)
class Sizes:
    """What decides how large a place is."""

    num_layers: int  # of the decoder
    num_heads: int
    head_size: int
    max_source_positions: int
    max_target_positions: int
    dtype: torch.dtype

    @property
    def cross(self) -> CacheSpec:
        """Return the spec of what is encoded: a block is a window."""
        return self._spec(self.max_source_positions)

    @property
    def own(self) -> CacheSpec:
        """Return the spec of the decoder's tokens: a block is a window."""
        return self._spec(self.max_target_positions)

    @property
    def place_bytes(self) -> int:
        """Return the bytes of one place."""
        return self.cross.block_bytes + self.own.block_bytes

    def _spec(self, num_rows: int) -> CacheSpec:
        layer = LayerSpec(self.num_heads, self.head_size, self.head_size, self.dtype)
        return CacheSpec.of((layer,) * self.num_layers, num_rows)


@dataclass(frozen=True, slots=True)
class KeysValues:
    """One layer's rows of one place: key and value, views of the cache."""

    key: torch.Tensor
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class Places:
    """Both caches, by place and layer."""

    cross: KVCache
    own: KVCache

    @classmethod
    def allocate(cls, sizes: Sizes, num_places: int, device: torch.device) -> Places:
        """Return new ones. Raises RuntimeError or torch.OutOfMemoryError if the device has not the memory."""
        return cls(KVCache(sizes.cross, num_places, device), KVCache(sizes.own, num_places, device))

    def cross_of(self, place: int, layer: int) -> KeysValues:
        """Return all that is encoded, [heads, rows, head size]: a token reads one head after the other."""
        rows = _rows(self.cross, place, layer, self.cross.spec.block_size)
        return KeysValues(_head_by_head(rows.key), _head_by_head(rows.value))

    def cross_by_head(self, layer: int) -> LayerCache:
        """Return the same of all places as blocks of one head: block place × heads + head."""
        pool = self.cross.layer(layer)
        return LayerCache(pool.key.view(-1, 1, pool.key.shape[-1]), pool.value.view(-1, 1, pool.value.shape[-1]))

    def own_of(self, place: int, layer: int, num_rows: int) -> KeysValues:
        """Return the first rows of the decoder's tokens, [rows, heads, head size]."""
        return _rows(self.own, place, layer, num_rows)


class SpeechCache:
    """Owns the memory of all places."""

    def __init__(self, device: Device, sizes: Sizes, num_places: int) -> None:
        """Allocate. Raises what `CacheStore` raises, and nothing is held then."""
        with ExitStack() as undo:
            self._cross = CacheStore(device, sizes.cross, num_places)
            undo.callback(self._cross.close)
            self._own = CacheStore(device, sizes.own, num_places)
            undo.pop_all()
        self.places = Places(self._cross.cache, self._own.cache)

    def __repr__(self) -> str:
        return f"SpeechCache({self._cross!r}, {self._own!r})"

    @property
    def parts(self) -> Sequence[CacheStore]:
        """Return what sleeps and wakes."""
        return (self._cross, self._own)

    def close(self) -> None:
        """Give everything back, whatever the state."""
        self._cross.close()
        self._own.close()


def _head_by_head(rows: torch.Tensor) -> torch.Tensor:
    """Return the memory of rows [rows, heads, head size] as [heads, rows, head size]."""
    return rows.view(rows.shape[1], rows.shape[0], rows.shape[2])


def _rows(cache: KVCache, place: int, layer: int, num_rows: int) -> KeysValues:
    pool, first = cache.layer(layer), place * cache.spec.block_size
    return KeysValues(pool.key[first : first + num_rows], pool.value[first : first + num_rows])
