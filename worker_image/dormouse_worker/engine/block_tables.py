"""Which blocks each sequence holds. One table per layer group; decides what a known prefix saves.

Layers that see the whole context form groups of their own apart from layers with a sliding window, so that these can
give back what lies behind the window. A sequence of n tokens, block size 4, window 6, the next token at position n:

    tokens    0   4   8   12  16  n = 18
    full      [b0][b1][b2][b3][b4]
    window    [--][--][--][b5][b6]       position 18 sees [13, 18]: blocks that end at or before 13 are given back
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dormouse_worker.engine.batch import BlockIds
from dormouse_worker.engine.block_pool import BlockPool
from dormouse_worker.engine.prefix import BlockHash

ABSENT = -1  # in a table: given back, or never needed, because it lies behind the window


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How tokens lie in blocks."""

    block_size: int
    windows: tuple[int | None, ...] = (None,)  # one layer group each; None = sees everything

    def __post_init__(self) -> None:
        assert self.block_size > 0
        assert self.windows

    @property
    def whole_groups(self) -> tuple[int, ...]:
        """Return the groups that see everything."""
        return tuple(group for group, window in enumerate(self.windows) if window is None)

    def num_blocks(self, num_tokens: int) -> int:
        """Return the blocks of so many tokens in one table."""
        return -(-num_tokens // self.block_size)

    def fills_block(self, start: int, end: int) -> bool:
        """Return whether the tokens at [start, end) complete a block."""
        return end - end % self.block_size > start

    def first_needed(self, group: int, position: int) -> int:
        """Return the first block that a token at this position, or a later one, sees in the group."""
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    def most_blocks(self, num_tokens: int, chunk: int) -> int:
        """Return the most blocks that one sequence holds on its way to so many tokens, in chunks of at most `chunk`.

        A window's span begins in the middle of a block, and is looked at whenever a block is full.
        """
        slack = chunk + 2 * self.block_size
        spans = (num_tokens if w is None else min(num_tokens, w + slack) for w in self.windows)
        return sum(self.num_blocks(span) for span in spans)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The longest known beginning of a sequence."""

    num_tokens: int
    block_ids: BlockIds  # with ABSENT where a window needs nothing
    next_hash: BlockHash | None = field(default=None, compare=False)  # the first unknown name, if that is why it ends


@dataclass(frozen=True, slots=True)
class Shortage:
    """A sequence found no room. It finds none before blocks come back or more of its beginning is known.

    All else takes a block from the pool for each one that it lets the sequence share.
    """

    generation: int  # of the pool
    next_hash: BlockHash | None


class BlockTables:
    """Owns the tables; the pool knows who else holds a block."""

    def __init__(self, pool: BlockPool, layout: CacheLayout) -> None:
        self.pool = pool
        self.layout = layout
        self._whole = layout.whole_groups
        self._tables: dict[str, BlockIds] = {}
        self._num_named: dict[str, int] = {}  # blocks whose prefixes the pool knows

    def __repr__(self) -> str:
        return f"BlockTables({len(self._tables)} sequences, {self.pool!r})"

    @property
    def usage(self) -> float:
        """Return the used share of the pool, 0 to 1."""
        return self.pool.num_used / self.pool.num_blocks

    def table(self, sequence_id: str) -> BlockIds:
        """Return the sequence's blocks; the caller must not change them."""
        return self._tables[sequence_id]

    def find_prefix(self, hashes: Sequence[BlockHash], max_tokens: int) -> Prefix:
        """Return the longest known prefix of at most `max_tokens`, which every group can continue. Holds nothing."""
        limit = min(len(hashes), max_tokens // self.layout.block_size)
        count = next((index for index in range(limit) if not self._is_known(hashes[index])), limit)
        next_hash = hashes[count] if count < limit else None
        while (gap := self._last_gap(hashes, count)) is not None:
            count = gap  # every shorter prefix that ends behind the gap sees it too
        tables = tuple(self._known_blocks(group, hashes, count) for group in range(len(self.layout.windows)))
        return Prefix(count * self.layout.block_size, tables, next_hash)

    def admit(self, sequence_id: str, prefix: Prefix, num_tokens: int, end: int) -> bool:
        """Give a new sequence the prefix's blocks and what it lacks; False, and nothing changed, without room.

        `num_tokens` = all tokens it has: groups that see everything get blocks for them; `end` = how far the next
        pass goes: groups with a window get blocks so far.
        """
        assert sequence_id not in self._tables
        shared = list(iter_blocks(prefix.block_ids))
        missing = self._missing(prefix.block_ids, num_tokens, end)
        if sum(missing) > self.pool.num_available - self.pool.count_cached(shared):
            return False
        for block in shared:
            self.pool.hold(block)
        self._tables[sequence_id] = tuple(list(blocks) for blocks in prefix.block_ids)
        self._num_named[sequence_id] = prefix.num_tokens // self.layout.block_size
        self._extend(sequence_id, missing)
        return True

    def grow(self, sequence_id: str, num_tokens: int, end: int) -> bool:
        """Let the sequence hold blocks as `admit` describes; False, and nothing changed, without room. Idempotent."""
        table = self._tables[sequence_id]
        if self._is_enough(table, num_tokens, end):
            return True
        missing = self._missing(table, num_tokens, end)
        if sum(missing) > self.pool.num_available:
            return False
        self._extend(sequence_id, missing)
        return True

    def restore(self, sequence_id: str, shape: Sequence[Sequence[bool]], num_tokens: int, end: int) -> BlockIds | None:
        """Give a sequence that was swapped out a table of its old shape, grown as by `grow`.

        None, and nothing changed, without room. The blocks share nothing, and get their names with the next `commit`.
        """
        assert sequence_id not in self._tables
        table = tuple([ABSENT] * len(group) for group in shape)
        missing = self._missing(table, num_tokens, end)
        num_present = sum(map(sum, shape))
        if num_present + sum(missing) > self.pool.num_available:
            return None
        fresh = iter(self.pool.allocate(num_present))
        self._tables[sequence_id] = tuple([next(fresh) if there else ABSENT for there in group] for group in shape)
        self._num_named[sequence_id] = 0
        self._extend(sequence_id, missing)
        return self._tables[sequence_id]

    def shortage(self, prefix: Prefix | None = None) -> Shortage:
        """Return why `admit` refused a sequence with this prefix, or why `restore` refused one."""
        return Shortage(self.pool.generation, None if prefix is None else prefix.next_hash)

    def has_eased(self, shortage: Shortage) -> bool:
        """Return whether the sequence may find room now.

        Always true where a window is: these layers give back blocks all the time, and need others in each pass.
        """
        has_windows = len(self._whole) < len(self.layout.windows)
        has_grown = shortage.next_hash is not None and self._is_known(shortage.next_hash)
        return has_windows or has_grown or shortage.generation != self.pool.generation

    def commit(self, sequence_id: str, hashes: Sequence[BlockHash], num_computed: int, owner: Any = None) -> None:
        """Note that tokens [0, num_computed) are in the cache: name full blocks, give back those behind a window."""
        self.name(sequence_id, hashes, num_computed, owner)
        for group, blocks in enumerate(self._tables[sequence_id]):
            self._give_back(blocks, self.layout.first_needed(group, num_computed))

    def name(self, sequence_id: str, hashes: Sequence[BlockHash], num_computed: int, owner: Any = None) -> None:
        """Let others share the full blocks of tokens [0, num_computed), which this pass or an earlier one computes.

        `hashes` may name blocks that are not computed yet, or none where names are not wanted. `owner`: see the pool's.
        """
        table = self._tables[sequence_id]
        num_full = min(len(hashes), num_computed // self.layout.block_size)
        for index in range(self._num_named[sequence_id], num_full):
            for group, blocks in enumerate(table):
                if blocks[index] != ABSENT:
                    self.pool.name(blocks[index], (group, hashes[index]), owner)
        self._num_named[sequence_id] = num_full

    def free(self, sequence_id: str) -> None:
        """Give back everything; nothing happens if the sequence holds nothing."""
        for blocks in self._tables.pop(sequence_id, ()):
            self.pool.release(list(iter_blocks((blocks,))))
        self._num_named.pop(sequence_id, None)

    def check_integrity(self) -> None:
        """Recount the pool against the tables. Raises RuntimeError with the numbers."""
        self.pool.check_integrity(block for table in self._tables.values() for block in iter_blocks(table))

    def _is_known(self, block_hash: BlockHash) -> bool:
        """Return whether every group without a window knows this block."""
        return all(self.pool.find((group, block_hash)) is not None for group in self._whole)

    def _last_gap(self, hashes: Sequence[BlockHash], count: int) -> int | None:
        """Return the last of `count` blocks that a window at their end sees and does not know, or None."""
        for group, window in enumerate(self.layout.windows):
            if window is not None:
                first = self.layout.first_needed(group, count * self.layout.block_size)
                for index in range(count - 1, first - 1, -1):
                    if self.pool.find((group, hashes[index])) is None:
                        return index
        return None

    def _known_blocks(self, group: int, hashes: Sequence[BlockHash], count: int) -> list[int]:
        """Return the group's table of the first `count` blocks, all known where the next token sees them."""
        first = self.layout.first_needed(group, count * self.layout.block_size)
        found = (self.pool.find((group, hashes[index])) for index in range(first, count))
        return [ABSENT] * first + [block for block in found if block is not None]

    def _is_enough(self, table: BlockIds, num_tokens: int, end: int) -> bool:
        """Return whether nothing is missing: nearly always, a decoding sequence needs a block only now and then."""
        size = self.layout.block_size
        for blocks, window in zip(table, self.layout.windows, strict=True):
            if len(blocks) * size < (num_tokens if window is None else end):
                return False
        return True

    def _missing(self, table: BlockIds, num_tokens: int, end: int) -> list[int]:
        wanted = (num_tokens if window is None else end for window in self.layout.windows)
        return [
            max(0, self.layout.num_blocks(tokens) - len(blocks)) for tokens, blocks in zip(wanted, table, strict=True)
        ]

    def _extend(self, sequence_id: str, missing: Sequence[int]) -> None:
        for blocks, count in zip(self._tables[sequence_id], missing, strict=True):
            blocks.extend(self.pool.allocate(count))

    def _give_back(self, blocks: list[int], first_needed: int) -> None:
        index = min(first_needed, len(blocks)) - 1
        behind: list[int] = []
        while index >= 0 and blocks[index] != ABSENT:
            behind.append(blocks[index])
            blocks[index] = ABSENT
            index -= 1
        self.pool.release(behind[::-1])


def iter_blocks(block_ids: BlockIds) -> Iterator[int]:
    """Yield the present blocks of all groups."""
    return (block for blocks in block_ids for block in blocks if block != ABSENT)
