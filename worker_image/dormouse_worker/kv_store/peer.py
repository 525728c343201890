"""What a store asks of another worker: for the files of its blocks, by their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from dormouse_worker.kv_store.interface import BlockName, Miss

MAX_NAMES = 4096  # of one question
MAX_REQUEST_S = 30.0  # of one reading, whatever it is of


class PeerFailed(Exception):
    """The worker did not say what it was asked."""

    def __init__(self, miss: Miss, why: str) -> None:
        super().__init__(why)
        self.miss = miss


class Peer(Protocol):
    """A worker that may have blocks. Its methods may be called by several threads at once, and wait for it."""

    def find(self, realm: bytes, names: Sequence[BlockName]) -> Sequence[bool]:
        """Return of each, at most MAX_NAMES, whether it is there. Raises PeerFailed."""

    def read(self, realm: bytes, names: Sequence[BlockName], file_bytes: int) -> Iterator[bytes]:
        """Yield the files, each of so many bytes, behind each other in parts of any size. Raises PeerFailed.

        It ends early before the first that is not there.
        """

    def close(self) -> None:
        """Ask no more: what is under way fails at once. May be called twice, and before anything was asked."""
