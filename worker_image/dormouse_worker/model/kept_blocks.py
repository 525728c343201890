"""Blocks of a cache in host memory, while the cache's own memory is away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dormouse_worker.common.errors import InsufficientMemory
from dormouse_worker.model.device.arena import Arena
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.kv_cache import KVCache, arena_bytes
from dormouse_worker.model.memory.arithmetic import gib
from dormouse_worker.model.tensors import Tensor, bytes_of, empty_beside, put, take

SLICE_BYTES = 32 << 20  # gathered on the device at once


class KeptBlocks:
    """Owns a smaller cache in host memory, in which the kept blocks lie behind each other."""

    def __init__(
        self, cache: KVCache, block_ids: Sequence[int], device: Device, *, slice_bytes: int = SLICE_BYTES
    ) -> None:
        """Copy the blocks out. Raises InsufficientMemory with the numbers; any error leaves nothing held."""
        self._block_ids = tuple(block_ids)
        self._device = device
        self._slice_bytes = slice_bytes
        num_blocks = -(-len(self._block_ids) // len(cache.spec.groups))  # of all layers, as the agreed ones
        num_bytes = arena_bytes(cache.spec, num_blocks)
        self._arena = Arena("kept_blocks", device.copies or device.memory, num_bytes)
        try:
            self._arena.prepare(num_bytes)
            self._arena.map()
            self._copy = KVCache(cache.spec, num_blocks, None, arena=self._arena)
            for ids, pool, copy in self._slices(cache):
                device.copy(bytes_of(copy), bytes_of(take(pool, ids)))
        except BaseException as error:
            self.close()
            if not isinstance(error, DeviceOutOfMemory):
                raise
            raise InsufficientMemory(
                f"keeping {len(self._block_ids)} blocks takes {gib(error.wanted_bytes)} of host memory, "
                f"{gib(error.free_bytes)} are free; raise the container's memory limit or set keepPrefixCache to false"
            ) from error

    def __repr__(self) -> str:
        return f"KeptBlocks({len(self._block_ids)} blocks, {self._arena!r})"

    @property
    def num_bytes(self) -> int:
        """Return the host memory held."""
        return self._arena.size_bytes

    def put_back(self, cache: KVCache) -> None:
        """Copy the blocks to where they were; what is kept stays."""
        for ids, pool, copy in self._slices(cache):
            rows = empty_beside(pool, copy)
            self._device.copy(bytes_of(rows), bytes_of(copy))
            put(pool, ids, rows)

    def close(self) -> None:
        """Give the host memory back."""
        self._arena.close()

    def _slices(self, cache: KVCache) -> Iterator[tuple[Sequence[int], Tensor, Tensor]]:
        """Yield block ids [n], a pool of the cache [blocks, …] and the place of their copy [n, …], pool by pool."""
        for pool, copy in zip(cache.by_block(), self._copy.by_block(), strict=True):
            ids = self._block_ids
            num_rows = max(1, self._slice_bytes // pool[0].nbytes)
            for start in range(0, len(ids), num_rows):
                part = ids[start : start + num_rows]
                yield part, pool, copy[start : start + len(part)]
