"""One request's view of the blocks of two workers: those of a store here, and those that another worker has.

Blocks come as the files that they are there, checksums and names included, in one stream in the order in which they are
read. What a stream does not bring is a miss, and whoever sends a wrong block is asked for no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from dormouse_worker.kv_store.block_file import HEADER_BYTES, check_block
from dormouse_worker.kv_store.interface import Block, BlockName, BlockStore, Miss
from dormouse_worker.kv_store.peer import MAX_NAMES, Peer, PeerFailed


class PeerStore:
    """Implements `BlockStore` over the files' store of this worker, which alone is written to."""

    def __init__(self, store: BlockStore, peer: Peer, realm: bytes) -> None:
        """`realm` = of the store, under which the other worker keeps the same blocks."""
        self._store, self._peer, self._realm = store, peer, realm
        self._there: set[BlockName] = set()  # at the peer
        self._ahead: deque[BlockName] = deque()  # to be read from it
        self._stream = _Stream(iter(()))
        self._num_in_stream = 0  # of those ahead

    def __repr__(self) -> str:
        return f"PeerStore({self._store!r}, {len(self._there)} blocks at {self._peer!r})"

    @property
    def num_bytes(self) -> int:
        """See `BlockStore`."""
        return self._store.num_bytes

    def capacity(self, num_bytes: int) -> int:
        """See `BlockStore`."""
        return self._store.capacity(num_bytes)

    def has(self, name: BlockName) -> bool:
        """See `BlockStore`."""
        return self._store.has(name) or name in self._there

    def look(self, names: Sequence[BlockName]) -> int:
        """See `BlockStore`. What the store here has is not asked for; a peer that fails has nothing."""
        count = self._store.look(names)
        left = [name for name in names if not self.has(name)]
        for start in range(0, len(left), MAX_NAMES):
            part = left[start : start + MAX_NAMES]
            try:
                found = {name for name, there in zip(part, self._peer.find(self._realm, part), strict=False) if there}
            except PeerFailed:
                return count
            self._there |= found
            count += len(found)
        return count

    def expect(self, names: Sequence[BlockName]) -> None:
        """See `BlockStore`."""
        self._ahead = deque(name for name in names if not self._store.has(name))
        self._num_in_stream = 0

    def read(self, name: BlockName, into: memoryview) -> Miss | None:
        """See `BlockStore`. What the peer has is read in the order in which it is expected, or not at all."""
        if self._store.has(name):
            return self._store.read(name, into)
        if name not in self._ahead:
            return Miss.ABSENT
        miss = self._fetch(name, into)
        if miss is not None:
            self._ahead.clear()
            self._peer.close()
        return miss

    def write(self, blocks: Sequence[Block], recompute_s: float = 0.0) -> dict[Miss, int]:
        """See `BlockStore`."""
        return self._store.write(blocks, recompute_s)

    def touch(self, names: Sequence[BlockName], recompute_s: float = 0.0) -> None:
        """See `BlockStore`."""
        self._store.touch(names, recompute_s)

    def drop(self, names: Sequence[BlockName]) -> None:
        """See `BlockStore`."""
        self._store.drop(names)

    def clear(self) -> None:
        """See `BlockStore`."""
        self._store.clear()

    def is_shared(self) -> bool:
        """See `BlockStore`."""
        return True

    def _fetch(self, name: BlockName, into: memoryview) -> Miss | None:
        """Fill `into` from the stream; what comes before the block has been found here meanwhile."""
        header = bytearray(HEADER_BYTES)
        try:
            while True:
                if not self._num_in_stream:
                    self._open(HEADER_BYTES + into.nbytes)
                reached = self._ahead.popleft()
                self._num_in_stream -= 1
                got = self._stream.fill(memoryview(header)) + self._stream.fill(into)
                if got < HEADER_BYTES + into.nbytes:
                    return Miss.TRUNCATED if got else Miss.ABSENT
                if reached == name:
                    return check_block(bytes(header), self._realm, name, into)
        except PeerFailed as failed:
            return failed.miss

    def _open(self, file_bytes: int) -> None:
        names = list(islice(self._ahead, MAX_NAMES))
        self._stream = _Stream(self._peer.read(self._realm, names, file_bytes))
        self._num_in_stream = len(names)


class _Stream:
    """Bytes in parts of any size, taken in others."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._left = memoryview(b"")

    def fill(self, place: memoryview) -> int:
        """Fill the place; return how many bytes there were. Raises PeerFailed."""
        done = 0
        while done < place.nbytes:
            if not self._left:
                part = next(self._parts, None)
                if part is None:
                    return done
                self._left = memoryview(part)
            count = min(len(self._left), place.nbytes - done)
            place[done : done + count] = self._left[:count]
            self._left = self._left[count:]
            done += count
        return done
