"""Which tokens two libraries of grammars allow at the same position, and in what they differ. Pure.

What both have counts. Two differences are known and named: a string whose length is bounded has escapes in ours and
control characters in xgrammar's (JSON allows DEL alone of them); an integer within bounds may be written -0 in ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Difference = Literal["equal", "one spelling", "escapes", "minus zero", "other"]
_CONTROL = frozenset(map(chr, [*range(0x20), 0x7F]))


class Walk(msgspec.Struct, frozen=True):
    """A schema, and tokens that were taken one after the other."""

    schema: Mapping[str, Any]
    tokens: tuple[int, ...]


class Walks(msgspec.Struct, frozen=True):
    """What a peer is asked for: the masks before each token of each walk, and after the last."""

    walks: tuple[Walk, ...]


class Masks(msgspec.Struct, frozen=True):
    """The masks of each walk, a bit for each token, the lowest first; fewer where the peer refused a token."""

    masks: tuple[tuple[bytes, ...], ...]


class FormAsked(msgspec.Struct, frozen=True):
    """An answer of a schema that a peer is asked for, without blanks."""

    prompt: tuple[int, ...]
    schema: Mapping[str, Any]
    max_tokens: int


class FormSaid(msgspec.Struct, frozen=True):
    """What a peer made of it."""

    num_tokens: int
    finish_reason: str
    seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class Position:
    """Where two grammars stand: what they allow, and the text before."""

    ours: frozenset[int]
    theirs: frozenset[int]
    text: str
    is_forced: bool  # ours has one text to go on with, and spells it as the tokenizer would

    def difference(self, spelling: Callable[[int], str], special: frozenset[int]) -> Difference:
        """Return in what the sets differ."""
        more, less = self.ours - self.theirs, self.theirs - self.ours
        if not more and not less:
            return "equal"
        if self.is_forced and not more:
            return "one spelling"
        if all("\\" in spelling(token) for token in more) and all(
            token in special or not _CONTROL.isdisjoint(spelling(token)) for token in less
        ):
            return "escapes"
        if not less and all((self.text + spelling(token)).endswith("-0") for token in more):
            return "minus zero"
        return "other"


def allowed(mask: bytes, vocab_size: int) -> frozenset[int]:
    """Return the tokens of a mask."""
    return frozenset(token for token in range(vocab_size) if mask[token // 8] >> (token % 8) & 1)
