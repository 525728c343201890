"""A text that grows, in which the place behind a run of tokens is found in constant time; and who follows such a text.

    text    7 4 9 1 5 5 2 7 4 9 | ?      the run 7 4 9 stood before: what came behind it then is proposed now, 1 5 5 …

The index is a table of fixed size from the hash of a run to where it ended last. A slot that another run took costs a
guess, never a wrong one: what is found is compared. So memory and time are bounded whatever the tokens are.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

RUN_LENGTHS = (4, 2)  # tokens that must be equal, the longest first
MAX_SLOTS = 1 << 17  # of a table, 4 bytes each
MAX_INDEXED_AT_ONCE = 2048  # tokens: a long prompt is taken in over several passes


class IndexedText:
    """Owns tokens and where each run of them ended last, if something follows it there."""

    def __init__(self, capacity: int, run_lengths: Sequence[int] = RUN_LENGTHS) -> None:
        """`capacity` = how many tokens it will hold; more only make it forget. The longest runs come first."""
        self.tokens: list[int] = []
        num_slots = min(MAX_SLOTS, 1 << max(4, (2 * capacity - 1).bit_length()))
        self._mask = num_slots - 1
        self._tables = {length: array("i", bytes(4 * num_slots)) for length in run_lengths}
        self._num_indexed = 0  # tokens of which every run that ends there is known

    def __repr__(self) -> str:
        return f"IndexedText({len(self.tokens)} tokens, {self._num_indexed} indexed, {self._mask + 1} slots)"

    def catch_up(self) -> None:
        """Index the next tokens, the last one excepted, which nothing follows yet."""
        first, tokens = self._num_indexed, self.tokens
        end = min(len(tokens) - 1, first + MAX_INDEXED_AT_ONCE)
        if end <= first:
            return
        mask = self._mask
        for length, table in self._tables.items():
            start = max(0, first + 1 - length)
            part = tokens[start:end]
            runs = zip(*(part[offset:] for offset in range(length)), strict=False)
            for position, key in enumerate(map(hash, runs), start + length):
                table[key & mask] = position
        self._num_indexed = end

    def find(self, tail: Sequence[int]) -> int | None:
        """Return the position behind the last known run that is the end of `tail`, the longest first; None = none."""
        tokens = self.tokens
        for length, table in self._tables.items():
            run = tuple(tail[-length:])
            position = table[hash(run) & self._mask]
            if position >= length == len(run) and tuple(tokens[position - length : position]) == run:
                return position
        return None


class Follower:
    """A place in a text, which moves on as long as a sequence says what stands there. It looks when it is asked."""

    def __init__(self, text: IndexedText, position: int | None = None, num_seen: int = 0) -> None:
        """Begin there, behind so many tokens of the sequence; None = wherever the text says what it says."""
        self._text = text
        self._position = position
        self._num_seen = num_seen

    def __repr__(self) -> str:
        return f"Follower({self._position} in {self._text!r})"

    def propose(self, sequence: list[int], count: int) -> list[int]:
        """See `Proposer`: what comes next if the sequence goes on as the text does."""
        position = self._move(sequence)
        return [] if position is None else self._text.tokens[position : position + count]

    def _move(self, sequence: list[int]) -> int | None:
        """Go to where the sequence's end stands in the text, as far as that is known."""
        text, position, num_seen = self._text, self._position, self._num_seen
        self._num_seen = len(sequence)
        if position is not None and num_seen < len(sequence):
            end = position + len(sequence) - num_seen
            position = end if text.tokens[position:end] == sequence[num_seen:] else None
        if position is None:
            text.catch_up()
            position = text.find(sequence)
        self._position = position
        return position


class SelfFollower(Follower):
    """Follows the sequence's own tokens. What it reads beyond their end is what it has just read: a period goes on."""

    def propose(self, sequence: list[int], count: int) -> list[int]:
        """See `Proposer`."""
        found = super().propose(sequence, count)
        while found and len(found) < count:
            found = (found * 2)[:count]
        return found
