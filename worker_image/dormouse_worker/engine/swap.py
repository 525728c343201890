"""Owns the blocks in host memory, says which preempted sequence lies in which of them, and what is to be copied out."""

from __future__ import annotations

from collections.abc import Sequence

from dormouse_worker.engine.batch import BlockIds, Moves
from dormouse_worker.engine.block_tables import ABSENT, iter_blocks


class SwapSpace:
    """The host blocks [0, num_blocks). Invariant: free + held = total, and no block has two owners."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 0
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._tables: dict[str, BlockIds] = {}
        self._moves_out: dict[int, int] = {}  # host block → device block: the last to take a host block counts

    def __repr__(self) -> str:
        return f"SwapSpace(total={self.num_blocks}, free={self.num_free}, sequences={len(self._tables)})"

    def __contains__(self, sequence_id: str) -> bool:
        """Return whether the sequence lies here."""
        return sequence_id in self._tables

    @property
    def num_free(self) -> int:
        """Return how many blocks nobody holds."""
        return len(self._free)

    def has_room(self, block_ids: BlockIds) -> bool:
        """Return whether a sequence with this table fits."""
        return sum(1 for _ in iter_blocks(block_ids)) <= len(self._free)

    def take(self, sequence_id: str, block_ids: BlockIds) -> None:
        """Take a sequence in, for which there is room; its blocks are to be copied before anything else happens."""
        assert sequence_id not in self._tables
        table = tuple([ABSENT if block == ABSENT else self._free.pop() for block in blocks] for blocks in block_ids)
        self._tables[sequence_id] = table
        self._moves_out.update(zip(iter_blocks(table), iter_blocks(block_ids), strict=True))

    def moves_out(self) -> Moves:
        """Return the moves (device block, host block) since the last call."""
        moves = tuple((device, host) for host, device in self._moves_out.items())
        self._moves_out.clear()
        return moves

    def shape(self, sequence_id: str) -> Sequence[Sequence[bool]]:
        """Return for each layer group which blocks of the table are present."""
        return [[block != ABSENT for block in blocks] for blocks in self._tables[sequence_id]]

    def give(self, sequence_id: str, block_ids: BlockIds) -> Moves:
        """Let a sequence go to a device table that begins with its shape; return the moves (host, device block)."""
        groups = zip(self._tables[sequence_id], block_ids, strict=True)
        pairs = (pair for host, device in groups for pair in zip(host, device, strict=False))
        moves = tuple(pair for pair in pairs if pair[0] != ABSENT)
        self.drop(sequence_id)
        return moves

    def drop(self, sequence_id: str) -> None:
        """Forget a sequence; nothing happens if it does not lie here."""
        self._free.extend(iter_blocks(self._tables.pop(sequence_id, ())))

    def check_integrity(self) -> None:
        """Recount everything. Raises RuntimeError with the numbers."""
        held = [block for table in self._tables.values() for block in iter_blocks(table)]
        if sorted([*self._free, *held]) != list(range(self.num_blocks)):
            raise RuntimeError(f"host blocks are wrong: {len(self._free)} free + {len(held)} held of {self.num_blocks}")
