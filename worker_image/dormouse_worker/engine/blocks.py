"""Owns the blocks of the KV cache: which are free and which sequence holds which. Knows no tokens and no tensors."""

from __future__ import annotations


class BlockAllocator:
    """A free list and one block table per sequence.

    A sequence of n tokens holds ceil(n / block_size) blocks; tokens [i * block_size, (i + 1) * block_size) lie in
    the i-th block of its table. Invariant: free + used = total, and no block has two owners.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0
        assert block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))  # popped from the end: low numbers first
        self._tables: dict[str, list[int]] = {}

    def __repr__(self) -> str:
        return (
            f"BlockAllocator(total={self.num_blocks}, free={self.num_free}, used={self.num_used}, "
            f"sequences={len(self._tables)})"
        )

    @property
    def num_free(self) -> int:
        """Return how many blocks nobody holds."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Return how many blocks sequences hold."""
        return self.num_blocks - len(self._free)

    @property
    def usage(self) -> float:
        """Return the used share, 0 to 1."""
        return self.num_used / self.num_blocks

    def table(self, sequence_id: str) -> list[int]:
        """Return the sequence's blocks in token order; empty if it holds none. The caller must not change it."""
        return self._tables.get(sequence_id, [])

    def grow(self, sequence_id: str, num_tokens: int) -> bool:
        """Let the sequence hold `num_tokens` in all; False, and nothing changed, if too few blocks are free.

        Idempotent; never shrinks. A first call with enough free blocks makes the sequence known.
        """
        missing = self._blocks_for(num_tokens) - len(self.table(sequence_id))
        if missing > len(self._free):
            return False
        table = self._tables.setdefault(sequence_id, [])
        table.extend(self._free.pop() for _ in range(missing))
        return True

    def free(self, sequence_id: str) -> None:
        """Take all blocks back; nothing happens if the sequence holds none."""
        self._free.extend(reversed(self._tables.pop(sequence_id, [])))

    def check_integrity(self) -> None:
        """Recount everything. Raises RuntimeError with the numbers if a block was lost or is held twice."""
        held = [block for table in self._tables.values() for block in table]
        everything = sorted(held + self._free)
        if everything != list(range(self.num_blocks)):
            raise RuntimeError(
                f"blocks are wrong: {len(self._free)} free + {len(held)} held, {len(set(everything))} distinct, "
                f"{self.num_blocks} in all"
            )

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
