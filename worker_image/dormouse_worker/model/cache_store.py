"""The cache's memory: pools in an arena that come and go with it, and blocks that survive in host memory."""

from __future__ import annotations

from collections.abc import Sequence

from dormouse_worker.common.commands import KV_CACHE
from dormouse_worker.common.errors import InsufficientMemory, InvalidArgument
from dormouse_worker.model.device.arena import Arena
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.kept_blocks import KeptBlocks
from dormouse_worker.model.kv_cache import CacheSpec, KVCache, arena_bytes, smallest_pool_bytes
from dormouse_worker.model.memory.arithmetic import gib

MANY_PAGES = 16  # of a pool: a block touches one of each pool's, and huge ones shall not waste more than one in 16


class CacheStore:
    """Owns the arena of one cache and what is kept of it. Implements `SleepPart`.

    What sleeps is lost, but for the blocks that `keep` names: `save` copies them out, `put_back` returns them, and only
    `settle` after that lets the copies go. Between `restore` and `put_back` anybody may write to any block.
    """

    tag = KV_CACHE

    def __init__(
        self, device: Device, spec: CacheSpec, num_blocks: int, *, is_beside: bool = False, prefaults: bool = False
    ) -> None:
        """Allocate in the device's memory, or in the host memory beside it (for swapped blocks).

        Where memory comes with the first touch, the blocks' comes when they are first written; with `prefaults` at
        once, and so after every `restore`.

        Raises DeviceOutOfMemory, or OSError where not even the range is to be had; nothing is held then.
        """
        memory = (device.copies or device.memory) if is_beside else device.memory
        self.is_asleep = True
        self._device = device
        self._must_fill = prefaults or not memory.gives_zeros
        self._takes_device_memory = memory is device.memory
        self._num_bytes = arena_bytes(spec, num_blocks)
        self._wanted: tuple[int, ...] = ()  # blocks that the next `save` shall keep
        self._kept: KeptBlocks | None = None
        self._is_fresh_copy = False  # what is kept was made by the last `save`
        self._is_back = False  # what is kept lies in the cache again
        self._level = 0  # the deepest level since it was awake
        self._next_level = 0  # what `save` announced
        is_sparse = not prefaults and smallest_pool_bytes(spec, num_blocks) < MANY_PAGES * memory.granularity
        self._arena = Arena("kv_cache", memory, self._num_bytes, is_sparse=is_sparse)
        try:
            self.restore()
            self.cache = KVCache(spec, num_blocks, None, arena=self._arena)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        state = "asleep" if self.is_asleep else "awake"
        return f"CacheStore({self.cache!r}, {state}, {self._arena!r}, kept={self._kept!r})"

    @property
    def wake_bytes(self) -> int:
        """See `SleepPart`."""
        return self._arena.whole_bytes(self._num_bytes) if self._takes_device_memory else 0

    @property
    def host_copy_bytes(self) -> int:
        """Return the host memory that kept blocks take."""
        return self._kept.num_bytes if self._kept else 0

    def keep(self, block_ids: Sequence[int]) -> None:
        """Name the blocks that the next `save` at level 1 shall keep. Raises InvalidArgument.

        A cache that sleeps, or whose kept blocks are not back yet, has kept them before and keeps them on.
        """
        num_blocks = self.cache.num_blocks * len(self.cache.spec.groups)
        if wrong := [block for block in block_ids if not 0 <= block < num_blocks]:
            raise InvalidArgument(f"kept_blocks holds {wrong[0]}; the cache has the blocks 0 to {num_blocks - 1}")
        self._wanted = tuple(block_ids)

    def save(self, level: int) -> None:
        """See `SleepPart`. Raises InsufficientMemory if the blocks to keep do not fit into host memory."""
        wanted, self._wanted = self._wanted, ()
        if wanted and level == 1 and not self.is_asleep and self._kept is None:
            self._kept = KeptBlocks(self.cache, wanted, self._device)
            self._is_fresh_copy = True
        self._next_level = level

    def forget(self) -> None:
        """See `SleepPart`."""
        self._next_level = 0
        if self._is_fresh_copy:
            self._discard()

    def drop(self) -> int:
        """See `SleepPart`."""
        self._level, self._next_level = max(self._level, self._next_level), 0
        self._is_fresh_copy = self._is_back = False
        if self._level > 1:
            self._discard()
        self.is_asleep = True
        return self._arena.unmap()

    def reserve(self) -> None:
        """See `SleepPart`. Raises InsufficientMemory if the memory beside the device's lacks."""
        try:
            self._arena.prepare(self._num_bytes)
        except DeviceOutOfMemory as error:
            if self._takes_device_memory:
                raise
            raise InsufficientMemory(
                f"swap space takes {gib(error.wanted_bytes)} of host memory, {gib(error.free_bytes)} are free; raise "
                "the container's memory limit or lower swapSpace"
            ) from error

    def cancel(self) -> None:
        """See `SleepPart`."""
        self._arena.cancel()

    def restore(self) -> None:
        """See `SleepPart`. Every block is zero afterwards."""
        try:
            self._arena.prepare(self._num_bytes)
            self._arena.map()
            if self._must_fill:
                self._arena.bytes(0, self._num_bytes)[:] = 0
        except BaseException:
            self._arena.unmap()
            raise
        self.is_asleep = False

    is_arriving = False

    def arrive(self) -> None:
        """See `SleepPart`: everything is back at once."""

    def put_back(self) -> None:
        """Return what is kept to its blocks; nothing happens if nothing is."""
        if self._kept is not None:
            self._kept.put_back(self.cache)
            self._is_back = True

    def settle(self) -> None:
        """See `SleepPart`."""
        if self.is_asleep:
            return
        self._level = 0
        if self._is_back:
            self._discard()

    def close(self) -> None:
        """Give everything back, whatever the state; the cache is not used again."""
        self._discard()
        self._arena.close()

    def _discard(self) -> None:
        if self._kept is not None:
            self._kept.close()
        self._kept = None
        self._is_fresh_copy = self._is_back = False
