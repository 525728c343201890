"""Blocks of a cache as bytes, and the name of all that decides what they mean. For stores that outlive the cache.

A block's bytes are those of its slots in each pool: the keys of the first pool, its values, then the next pool's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from dormouse_worker.model.kv_cache import CacheSpec, KVCache
from dormouse_worker.model.tensors import as_array, beside, bytes_of, put, take

_FORMAT = b"dormouse cache blocks 1"


def make_realm(spec: CacheSpec, *facts: object) -> bytes:
    """Return 32 bytes that are equal where blocks of equal names hold equal bytes.

    `facts` = all that the numbers depend on beside tokens, salts and adapters: weights, share, arithmetic.
    """
    layers = [(each.num_kv_heads, each.key_size, each.value_size, each.kind) for each in spec.layers]
    groups = [(group.layers, group.window) for group in spec.groups]
    told = repr((spec.block_size, spec.first_layer, layers, groups, facts))
    return hashlib.sha256(_FORMAT + told.encode(errors="surrogatepass")).digest()


class CacheBlocks:
    """Copies a cache's blocks out and in. Implements `engine.block_keeper.BlockCopier`."""

    def __init__(self, cache: KVCache, realm: bytes, on_write: Callable[[Sequence[int]], None] | None = None) -> None:
        """`on_write` hears of which blocks hold something else from now on."""
        self.realm = realm
        self._on_write = on_write
        self._cache = cache
        self._sizes = [rows[0].nbytes for rows in cache.by_block()]

    def __repr__(self) -> str:
        return f"CacheBlocks({self._cache!r}, {self.realm.hex()[:12]})"

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block of the pools."""
        return sum(self._sizes)

    def read_blocks(self, block_ids: Sequence[int]) -> list[memoryview]:
        """See `BlockCopier`."""
        copies, start = np.empty((len(block_ids), self.block_bytes), dtype=np.uint8), 0
        for rows, size in zip(self._cache.by_block(), self._sizes, strict=True):
            copies[:, start : start + size] = as_array(bytes_of(take(rows, block_ids))).reshape(-1, size)
            start += size
        return [row.data for row in copies]

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        """See `BlockCopier`."""
        copies, start = np.frombuffer(data, np.uint8).reshape(len(block_ids), self.block_bytes), 0
        for rows, size in zip(self._cache.by_block(), self._sizes, strict=True):
            part = beside(copies[:, start : start + size].copy(), rows)
            put(rows, block_ids, part.reshape(len(block_ids), *rows.shape[1:]))
            start += size
        if self._on_write is not None:
            self._on_write(block_ids)
