"""A worker that others ask for blocks, as files in a directory, and what may go wrong with it."""

import threading

from dormouse_worker.kv_store.block_file import path_below
from dormouse_worker.kv_store.interface import Miss
from dormouse_worker.kv_store.peer import PeerFailed


class FakePeer:
    """Implements `Peer` over a directory. Fails, changes bytes or stalls as the test says."""

    def __init__(self, root, *, part_bytes=1000):
        self.root = root
        self.part_bytes = part_bytes
        self.fails_to_find = self.fails_to_read = None  # a miss
        self.breaks_after = None  # bytes
        self.change = lambda data: data
        self.finds, self.reads = [], []
        self.is_closed = False
        self.stalls = False
        self._ended = threading.Event()

    def find(self, realm, names):
        self.finds.append(list(names))
        self._go_on(self.fails_to_find)
        return [self._path(realm, name).exists() for name in names]

    def read(self, realm, names, file_bytes):
        self.reads.append(list(names))
        self._go_on(self.fails_to_read)
        data = b""
        for name in names:
            path = self._path(realm, name)
            if not path.exists() or path.stat().st_size != file_bytes:
                break
            data += path.read_bytes()
        data = self.change(data)
        for start in range(0, len(data), self.part_bytes):
            if self.breaks_after is not None and start >= self.breaks_after:
                raise PeerFailed(Miss.IO, "gone")
            yield data[start : start + self.part_bytes]

    def close(self):
        self.is_closed = True
        self._ended.set()

    def _go_on(self, failure):
        if failure:
            raise PeerFailed(failure, "it fails")
        if self.stalls:
            assert self._ended.wait(60)
            raise PeerFailed(Miss.LATE, "it was not asked any more")

    def _path(self, realm, name):
        return self.root / path_below(realm, name)
