"""Owns the blocks of the KV cache: how often each is held, which are free, and which hold a known prefix.

Every block is in one of three states, and free + cached + used = total, always:
  free    nobody holds it and nothing in it is worth keeping
  cached  nobody holds it, but it holds a known prefix: whoever asks for that prefix gets it
  used    held by one sequence or, a full block of a known prefix, by several; it is never written to again then
Knows no tokens and no tensors. Blocks are handed out free ones first, then cached ones, least recently used first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dormouse_worker.engine.prefix import BlockHash

Key = tuple[int, BlockHash]  # layer group and the name of the content


class NoListener:
    """Is told which prefixes can be found, and tells nobody."""

    @property
    def has_news(self) -> bool:
        """Return whether `take` would return something."""
        return False

    def on_named(self, key: Key, owner: Any) -> None:
        """Whoever asks for this prefix finds it; `owner` has its tokens."""

    def on_lost(self, key: Key) -> None:
        """Nobody finds it any more."""

    def on_forgotten(self) -> None:
        """Nobody finds any prefix any more, though there were some."""

    def take(self) -> list[bytes]:
        """Return what others are to be told, and forget it."""
        return []


class BlockPool:
    """The blocks [0, num_blocks)."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self.generation = 0  # changes when a block comes back and when prefixes are forgotten
        self._num_holders = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # popped from the end: low numbers first
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._block_of: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}
        self.keeps_evicted = False  # set by whoever asks for them
        self._evicted: list[tuple[int, Key]] = []
        self._named: deque[tuple[int, Key]] | None = None  # those of whoever asks for them
        self.listener = NoListener()  # another one is set by whoever tells others

    def __repr__(self) -> str:
        return (
            f"BlockPool(total={self.num_blocks}, free={len(self._free)}, cached={self.num_cached}, "
            f"used={self.num_used})"
        )

    @property
    def num_available(self) -> int:
        """Return how many blocks can be handed out: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Return how many blocks nobody holds though they hold a known prefix."""
        return len(self._cached)

    @property
    def cached_blocks(self) -> tuple[int, ...]:
        """Return the blocks that nobody holds though they hold a known prefix."""
        return tuple(self._cached)

    @property
    def num_used(self) -> int:
        """Return how many blocks are held."""
        return self.num_blocks - self.num_available

    def allocate(self, count: int) -> list[int]:
        """Hand out blocks, each held once. There must be that many; a cached one loses its prefix."""
        assert count <= self.num_available
        return [self._take_one() for _ in range(count)]

    def find(self, key: Key) -> int | None:
        """Return the block that holds this prefix."""
        return self._block_of.get(key)

    def count_cached(self, blocks: Iterable[int]) -> int:
        """Return how many of these nobody holds: so many fewer are available once they are held."""
        return sum(block in self._cached for block in blocks)

    def hold(self, block: int) -> None:
        """Share a block that holds a known prefix."""
        assert block in self._key_of
        self._cached.pop(block, None)
        self._num_holders[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give blocks back, each by one of its holders, in token order.

        The last becomes the first to be handed out again: a prefix is worth more than what follows it.
        """
        for block in reversed(blocks):
            assert self._num_holders[block] > 0
            self._num_holders[block] -= 1
            if self._num_holders[block] == 0:
                self._retire(block)

    def name(self, block: int, key: Key, owner: Any = None) -> None:
        """Say which prefix a used, full block holds. The first block of a prefix keeps the name.

        The listener is told whose tokens they are.
        """
        assert self._num_holders[block] > 0
        if block not in self._key_of and key not in self._block_of:
            self._block_of[key] = block
            self._key_of[block] = key
            if self._named is not None:
                self._named.append((block, key))
            self.listener.on_named(key, owner)

    def note_named(self) -> deque[tuple[int, Key]]:
        """Return a queue of the used blocks with a name; it gets those that are named from now on."""
        self._named = deque((block, key) for block, key in self._key_of.items() if self._num_holders[block])
        return self._named

    def stop_noting(self) -> None:
        """Put nothing into that queue any more."""
        self._named = None

    def forget_prefixes(self) -> None:
        """Forget what every block holds."""
        self.generation += 1
        self._evicted.clear()
        if self._block_of:
            self.listener.on_forgotten()
        self._block_of.clear()
        self._key_of.clear()
        self._free.extend(self._cached)
        self._cached.clear()

    def take_evicted(self) -> list[tuple[int, Key]]:
        """Return the blocks that lost their prefix since the last call: it lies there until the next pass."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def iter_cached(self) -> Iterator[tuple[int, Key]]:
        """Yield the blocks that nobody holds though they hold a known prefix, with its name, those used last first."""
        return ((block, self._key_of[block]) for block in reversed(self._cached))

    def check_integrity(self, held: Iterable[int]) -> None:
        """Recount everything against what sequences say they hold. Raises RuntimeError with the numbers."""
        holders = Counter(held)
        is_counted = all(self._num_holders[block] == holders[block] for block in range(self.num_blocks))
        everything = sorted([*self._free, *self._cached, *holders])
        is_whole = everything == list(range(self.num_blocks))
        is_named = all(self._key_of.get(block) == key for key, block in self._block_of.items())
        are_cached_named = all(block in self._key_of for block in self._cached)
        if not (is_counted and is_whole and is_named and are_cached_named):
            raise RuntimeError(
                f"blocks are wrong: {len(self._free)} free + {self.num_cached} cached + {len(holders)} held of "
                f"{self.num_blocks}; {len(self._block_of)} names, holders counted {'right' if is_counted else 'wrong'}"
            )

    def _take_one(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            key = self._key_of.pop(block)
            del self._block_of[key]
            if self.keeps_evicted:
                self._evicted.append((block, key))
            self.listener.on_lost(key)
        self._num_holders[block] = 1
        return block

    def _retire(self, block: int) -> None:
        self.generation += 1
        if block in self._key_of:
            self._cached[block] = None
        else:
            self._free.append(block)
