"""Reads and writes blocks of a store on threads of their own, within a bound of host memory. Knows no request.

One thread reads the store here, one writes to it, and one reads from other workers: who stalls holds up nobody else.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from dormouse_worker.engine.block_pool import Key
from dormouse_worker.engine.sources import Source
from dormouse_worker.kv_store.interface import Block, BlockName, BlockStore, Miss

CHUNK_BYTES = 4 << 20  # read before it is handed over; at least one block
NUM_CHUNKS = 3  # read, and not taken yet
MAX_WRITE_BYTES = 32 << 20  # taken, and not written yet


def name_of(key: Key) -> BlockName:
    """Return a block's name in its realm."""
    group, block_hash = key
    return bytes([group]) + block_hash


class Chunk:
    """Blocks that were read: `data[:len(keys) * block_bytes]`. To be given back by `close`."""

    def __init__(self, keys: Sequence[Key], data: bytearray, give_back: Callable[[bytearray], None]) -> None:
        self.keys = keys
        self.data = data
        self._give_back = give_back

    def close(self) -> None:
        """Let the memory be read into again."""
        self._give_back(self.data)


class Reading:
    """One sequence's blocks on their way. Implements `Preparation`: the sequence waits for it."""

    def __init__(
        self, keys: Sequence[Key], num_bytes: int, deadline_s: float, source: Source, owner: Any = None
    ) -> None:
        """`owner` = who has the sequence's tokens."""
        self.keys = keys
        self.source = source
        self.owner = owner
        self.num_bytes = num_bytes
        self.deadline_s = deadline_s
        self.misses: Counter[Miss] = Counter()
        self.is_given_up = False
        self._chunks: deque[Chunk] = deque()
        self._is_read = False
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return f"Reading({len(self.keys)} blocks, done={self.is_done()}, given_up={self.is_given_up})"

    @property
    def is_read(self) -> bool:
        """Return whether the thread has come to its end."""
        return self._is_read

    def is_done(self, timeout_s: float = 0.0) -> bool:
        """See `Preparation`. Returns early where there is a chunk to be taken."""
        with self._changed:
            if timeout_s and not self._is_over() and not self._chunks:
                self._changed.wait(timeout_s)
            return self._is_over()

    def give_up(self) -> None:
        """Nobody waits for it any more."""
        with self._changed:
            self.is_given_up = True
        while (chunk := self.take()) is not None:
            chunk.close()

    def take(self) -> Chunk | None:
        """Return the next blocks, if they are there."""
        with self._changed:
            return self._chunks.popleft() if self._chunks else None

    def put(self, chunk: Chunk) -> None:
        """Blocks are there."""
        with self._changed:
            if not self.is_given_up:
                self._chunks.append(chunk)
                self._changed.notify_all()
                return
        chunk.close()

    def end(self) -> None:
        """Nothing more comes."""
        with self._changed:
            self._is_read = True
            self._changed.notify_all()

    def _is_over(self) -> bool:
        return self.is_given_up or (self._is_read and not self._chunks)


class StoreThreads:
    """Owns the threads and the memory that they work on."""

    def __init__(
        self,
        store: BlockStore,
        block_bytes: int,
        clock: Callable[[], float],
        note_write: Callable[[int, float], None] = lambda _bytes, _seconds: None,
    ) -> None:
        """`note_write(bytes, seconds)` is called by the thread that writes."""
        self._note_write = note_write
        self._store = store
        self.block_bytes = block_bytes
        self._clock = clock
        self._blocks_per_chunk = max(1, CHUNK_BYTES // block_bytes)
        self._free: deque[bytearray] = deque()
        self._room = threading.Semaphore(NUM_CHUNKS)
        self._reader = ThreadPoolExecutor(1, "kv-store-reader")
        self._fetcher = ThreadPoolExecutor(1, "kv-store-fetcher")
        self._writer = ThreadPoolExecutor(1, "kv-store-writer")
        self._written: deque[tuple[Future[dict[Miss, int]], Sequence[Block]]] = deque()
        self._names_under_way: set[BlockName] = set()
        self._bytes_under_way = 0

    def __repr__(self) -> str:
        return f"StoreThreads({self._bytes_under_way} bytes to write)"

    def read(self, reading: Reading, note_read: Callable[[int, float], None]) -> None:
        """Begin to read, behind what was asked for before; `note_read(bytes, seconds)` is called by the thread."""
        thread = self._reader if reading.source.is_own else self._fetcher
        thread.submit(self._read, reading, note_read)

    @property
    def has_writes(self) -> bool:
        """Return whether `take_written` has something to return, sooner or later."""
        return bool(self._written)

    def is_writing(self, name: BlockName) -> bool:
        """Return whether the block is on its way to the store."""
        return name in self._names_under_way

    def room_for_writes(self) -> int:
        """Return how many blocks `write` takes now."""
        least = 0 if self._written else 1
        return max(least, (MAX_WRITE_BYTES - self._bytes_under_way) // self.block_bytes)

    def write(self, blocks: Sequence[Block], recompute_s: float) -> None:
        """Begin to write blocks, those first that shall last longest; there is room."""
        self._names_under_way.update(block.name for block in blocks)
        self._bytes_under_way += len(blocks) * self.block_bytes
        self._written.append((self._writer.submit(self._write, blocks, recompute_s), blocks))

    def take_written(self, timeout_s: float = 0.0) -> list[tuple[int, dict[Miss, int]]]:
        """Return what became of the oldest writes, once the first is done: how many blocks, and which were lost why."""
        if self._written and timeout_s > 0:
            wait([self._written[0][0]], timeout_s)
        ended = []
        while self._written and self._written[0][0].done():
            future, blocks = self._written.popleft()
            self._names_under_way.difference_update(block.name for block in blocks)
            self._bytes_under_way -= len(blocks) * self.block_bytes
            ended.append((len(blocks), future.result()))
        return ended

    def run(self, work: Callable[[], None]) -> None:
        """Have something done by the thread that writes, behind what it writes."""
        self._writer.submit(work)

    def _write(self, blocks: Sequence[Block], recompute_s: float) -> dict[Miss, int]:
        began_s = self._clock()
        lost = self._store.write(blocks, recompute_s)
        if not lost:
            self._note_write(len(blocks) * self.block_bytes, self._clock() - began_s)
        return lost

    def _read(self, reading: Reading, note_read: Callable[[int, float], None]) -> None:
        try:
            reading.source.store.expect([name_of(key) for key in reading.keys])
            for start in range(0, len(reading.keys), self._blocks_per_chunk):
                if not self._read_chunk(reading, start, note_read):
                    return
        finally:
            reading.end()

    def _read_chunk(self, reading: Reading, start: int, note_read: Callable[[int, float], None]) -> bool:
        """Read the blocks behind each other; False if this was the last chunk."""
        while not self._room.acquire(timeout=0.1):
            if reading.is_given_up:
                return False
        keys = reading.keys[start : start + self._blocks_per_chunk]
        data = self._free.popleft() if self._free else bytearray(self._blocks_per_chunk * self.block_bytes)
        began_s = self._clock()
        count = self._fill(reading, keys, data)
        if not count:
            self._give_back(data)
            return False
        note_read(count * self.block_bytes, self._clock() - began_s)
        reading.put(Chunk(keys[:count], data, self._give_back))
        return count == len(keys)

    def _fill(self, reading: Reading, keys: Sequence[Key], data: bytearray) -> int:
        """Return how many blocks were read, up to the first that is a miss."""
        for index, key in enumerate(keys):
            if reading.is_given_up:
                return index
            place = memoryview(data)[index * self.block_bytes : (index + 1) * self.block_bytes]
            miss = reading.source.store.read(name_of(key), place)
            if miss is not None:
                reading.misses[miss] += 1
                return index
        return len(keys)

    def _give_back(self, data: bytearray) -> None:
        self._free.append(data)
        self._room.release()
