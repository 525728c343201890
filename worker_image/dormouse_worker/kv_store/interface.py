"""What the engine asks of a store of KV blocks. A store may forget anything at any time; it gives nothing wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

BlockName = bytes  # of 1 to MAX_NAME_BYTES bytes; within one realm equal names mean equal bytes
MAX_NAME_BYTES = 64


class Miss(StrEnum):
    """Why a block that was thought to be there is not given, or one that was to be kept is not there."""

    ABSENT = "absent"  # nobody wrote it, it made room for others, or a stream came without it
    TRUNCATED = "truncated"  # the file has fewer or more bytes than it says
    DAMAGED = "damaged"  # the bytes are not those that were written
    OTHER = "other"  # it is another block's, realm's or size's
    VERSION = "version"  # a format that this version does not know
    IO = "io"  # the operating system refused, or the worker that was to have it
    NO_ROOM = "no_room"  # the disk is full, the block is larger than the budget, or the cache is in use
    LATE = "late"  # it came later than computing it would have taken, or nobody had time to write it


@dataclass(frozen=True, slots=True)
class Block:
    """A block that is to be kept."""

    name: BlockName
    data: memoryview  # bytes, contiguous; must not change before `write` returns


class BlockStore(Protocol):
    """Blocks by name, within one realm: the model, the cache's layout and whatever else decides what the bytes mean.

    No method raises for what disks do. Methods may be called by several threads at once.
    """

    def has(self, name: BlockName) -> bool:
        """Return whether the block is thought to be there. Looks at memory only: it may be called in a step."""

    def read(self, name: BlockName, into: memoryview) -> Miss | None:
        """Fill `into`, of exactly the block's size; None = it is the block, else `into` holds anything."""

    def expect(self, names: Sequence[BlockName]) -> None:
        """Take a hint: these are read next, in this order, by the thread that says so."""

    def write(self, blocks: Sequence[Block], recompute_s: float = 0.0) -> dict[Miss, int]:
        """Keep blocks, those first that shall last longest; return how many were not kept, by reason.

        `recompute_s` = what computing one of them takes: what is dear lasts longer than what is cheap. A block that is
        there stays as it is, and counts as used now.
        """

    def touch(self, names: Sequence[BlockName], recompute_s: float = 0.0) -> None:
        """Note that these were used, as `write` does; unknown ones are ignored."""

    def drop(self, names: Sequence[BlockName]) -> None:
        """Forget these; unknown ones are ignored."""

    def clear(self) -> None:
        """Forget every block of this realm."""

    def look(self, names: Sequence[BlockName]) -> int:
        """Ask the store itself for names that `has` does not know; return how many it knows from now on."""

    def is_shared(self) -> bool:
        """Return whether others can write to it now. Asks the store itself, as `look` does."""

    def capacity(self, num_bytes: int) -> int:
        """Return how many blocks of this size it holds at most."""

    @property
    def num_bytes(self) -> int:
        """Return what the store holds, of all realms, as far as it is known."""
