"""Writes down what becomes of the blocks with a name, as the events that routers of others read.

What is told is the prefix cache as a request would find it: a block counts from the moment others may share it, and
until its content gives way or is forgotten. Blocks in host memory and in a store are none of it: nobody finds these
without their being named again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from dormouse_worker.common.kv_events import (
    FULL_ATTENTION,
    MEDIUM,
    SLIDING_WINDOW,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KvEvent,
)
from dormouse_worker.engine.block_pool import Key, NoListener
from dormouse_worker.engine.block_tables import CacheLayout
from dormouse_worker.engine.prefix import BlockHash
from dormouse_worker.engine.request import Request

MAX_BATCH_TOKENS = 2048  # of stored blocks, or of one that is larger: some 12 KB
MAX_BATCH_BLOCKS = 256  # stored or removed
_HASH_BYTES = 8  # vLLM tells whole numbers of 64 bits


def wire_hash(block_hash: BlockHash) -> int:
    """Return by what number others know a block."""
    return int.from_bytes(block_hash[-_HASH_BYTES:], "big")


class KvEventLog(NoListener):
    """Owns the events that nobody has taken so far."""

    def __init__(self, layout: CacheLayout, now: Callable[[], float]) -> None:
        """`now` = seconds since 1970."""
        self._size, self._windows, self._now = layout.block_size, layout.windows, now
        self._encode = msgspec.msgpack.Encoder().encode
        self._index = 0  # of the block that was named last
        self._events: list[KvEvent] = []
        self._num_blocks = 0  # in the events
        self._batches: list[bytes] = []

    def __repr__(self) -> str:
        return f"KvEventLog({len(self._batches)} batches, {self._num_blocks} blocks)"

    @property
    def has_news(self) -> bool:
        """See `NoListener`."""
        return bool(self._events or self._batches)

    def on_named(self, key: Key, owner: Request) -> None:
        """See `NoListener`."""
        group, block_hash = key
        hashes = owner.named_hashes
        index = self._index = self._find(hashes, block_hash)
        parent = wire_hash(hashes[index - 1]) if index else None
        start, end = index * self._size, (index + 1) * self._size
        adapter = owner.adapter_within(end)
        last = self._events[-1] if self._events else None
        if not (
            isinstance(last, BlockStored)
            and last.group_idx == group
            and last.block_hashes[-1] == parent
            and last.lora_name == adapter
        ):
            window = self._windows[group]
            last = BlockStored(
                [], parent, [], self._size, None, MEDIUM, adapter, [], group,
                FULL_ATTENTION if window is None else SLIDING_WINDOW, window,
            )  # fmt: skip
            self._events.append(last)
        last.block_hashes.append(wire_hash(block_hash))
        last.token_ids += owner.token_ids(start, end)
        assert last.extra_keys is not None
        last.extra_keys.append(owner.extra_keys(start, end) or None)
        self._count_block()

    def on_lost(self, key: Key) -> None:
        """See `NoListener`."""
        group, block_hash = key
        last = self._events[-1] if self._events else None
        if not (isinstance(last, BlockRemoved) and last.group_idx == group):
            last = BlockRemoved([], MEDIUM, group)
            self._events.append(last)
        last.block_hashes.append(wire_hash(block_hash))
        self._count_block()

    def on_forgotten(self) -> None:
        """See `NoListener`."""
        self._events = [AllBlocksCleared()]
        self._batches.clear()  # all that they say is over
        self._num_blocks = 0

    def take(self) -> list[bytes]:
        """See `NoListener`."""
        if self._events:
            self._close_batch()
        batches, self._batches = self._batches, []
        return batches

    def _find(self, hashes: Sequence[BlockHash], block_hash: BlockHash) -> int:
        """Return the block's index, often that of the block before, in another group, or the next one."""
        for index in (self._index, self._index + 1):
            if index < len(hashes) and hashes[index] == block_hash:
                return index
        return hashes.index(block_hash)

    def _count_block(self) -> None:
        self._num_blocks += 1
        if self._num_blocks * self._size >= MAX_BATCH_TOKENS or self._num_blocks >= MAX_BATCH_BLOCKS:
            self._close_batch()

    def _close_batch(self) -> None:
        self._batches.append(self._encode(EventBatch(self._now(), self._events)))
        self._events, self._num_blocks = [], 0
