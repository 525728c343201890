"""The naive store: a mapping. What a test compares others with, and gives to an engine that it looks at."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dormouse_worker.kv_store.interface import Block, BlockName, Miss


class DictBlockStore:
    """Implements `BlockStore` without a limit. `faults[name]` is what the next reading of that block says."""

    def __init__(self) -> None:
        self.blocks: dict[BlockName, bytes] = {}
        self.faults: dict[BlockName, Miss] = {}
        self.reads: list[BlockName] = []
        self.unseen: dict[BlockName, bytes] = {}  # what others wrote
        self.looks: list[list[BlockName]] = []
        self.has_others = False

    def __repr__(self) -> str:
        return f"DictBlockStore({len(self.blocks)} blocks)"

    @property
    def num_bytes(self) -> int:
        """See `BlockStore`."""
        return sum(map(len, self.blocks.values()))

    def capacity(self, num_bytes: int) -> int:
        """See `BlockStore`."""
        del num_bytes
        return sys.maxsize

    def has(self, name: BlockName) -> bool:
        """See `BlockStore`."""
        return name in self.blocks

    def read(self, name: BlockName, into: memoryview) -> Miss | None:
        """See `BlockStore`."""
        self.reads.append(name)
        if (fault := self.faults.pop(name, None)) is not None:
            into[:] = b"\xff" * into.nbytes
            return fault
        data = self.blocks.get(name)
        if data is None:
            return Miss.ABSENT
        if len(data) != into.nbytes:
            return Miss.OTHER
        into[:] = data
        return None

    def expect(self, names: Sequence[BlockName]) -> None:
        """See `BlockStore`."""

    def write(self, blocks: Sequence[Block], recompute_s: float = 0.0) -> dict[Miss, int]:
        """See `BlockStore`."""
        del recompute_s
        for block in blocks:
            self.blocks.setdefault(block.name, bytes(block.data))
        return {}

    def touch(self, names: Sequence[BlockName], recompute_s: float = 0.0) -> None:
        """See `BlockStore`."""

    def drop(self, names: Sequence[BlockName]) -> None:
        """See `BlockStore`."""
        for name in names:
            self.blocks.pop(name, None)

    def clear(self) -> None:
        """See `BlockStore`."""
        self.blocks.clear()

    def look(self, names: Sequence[BlockName]) -> int:
        """See `BlockStore`. Those are found that a test put into `unseen`."""
        found = {name: self.unseen.pop(name) for name in names if name in self.unseen}
        self.looks.append(list(names))
        self.blocks.update(found)
        return len(found)

    def is_shared(self) -> bool:
        """See `BlockStore`."""
        return self.has_others
