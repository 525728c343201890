"""Whether an answer is right, and in which of the ways it is wrong. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a request ended. All but OK are failures of ours."""

    OK = "ok"
    LOST = "lost"  # no answer: an error, or none by its deadline
    UNENDED = "unended"  # the stream ended with OK, but without a last message
    TWO_ENDS = "two ends"  # something came after the last message
    LOST_TOKENS = "lost tokens"
    REPEATED_TOKENS = "repeated tokens"
    WRONG_TOKENS = "wrong tokens"
    WRONG_COUNT = "wrong count"  # the tokens are right, the running count beside them is not


@dataclass(frozen=True, slots=True)
class Piece:
    """One message of an answer."""

    tokens: tuple[int, ...]
    count: int  # what it says how many tokens there are by now
    is_last: bool = False
    is_migrated: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with the figures to it."""

    verdict: Verdict
    lost: int = 0  # tokens
    repeated: int = 0  # tokens

    @property
    def is_ok(self) -> bool:
        """Return whether there is nothing to find."""
        return self.verdict is Verdict.OK


def judge(expected: Sequence[int], pieces: Sequence[Piece], code: str) -> Finding:
    """Judge a request by what came and the status that it ended with. A lost one's tokens are judged no more."""
    if code != "OK":
        return Finding(Verdict.LOST)
    tokens = [token for piece in pieces for token in piece.tokens]
    found = compare(expected, tokens)
    if not found.is_ok:
        return found
    ends = [index for index, piece in enumerate(pieces) if piece.is_last]
    if not ends:
        return Finding(Verdict.UNENDED)
    if ends != [len(pieces) - 1]:
        return Finding(Verdict.TWO_ENDS)
    return Finding(Verdict.OK if _counts_are_right(pieces) else Verdict.WRONG_COUNT)


def compare(expected: Sequence[int], tokens: Sequence[int]) -> Finding:
    """Compare tokens with the reference; name a gap or a repetition as such if what follows it fits.

    Before the first difference both are alike. If the rest of the answer is the reference's from further on, tokens
    were lost; if it is from further back, they were repeated. Several faults in one answer, or others: wrong tokens.
    """
    expected, tokens = list(expected), list(tokens)
    if tokens == expected:
        return Finding(Verdict.OK)
    at = next((i for i, pair in enumerate(zip(expected, tokens, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(expected), len(tokens)) if at is None else at
    missing = len(expected) - len(tokens)
    if missing > 0 and tokens[at:] == expected[at + missing :]:
        return Finding(Verdict.LOST_TOKENS, lost=missing)
    if missing < 0 and at + missing >= 0 and tokens[at:] == expected[at + missing :]:
        return Finding(Verdict.REPEATED_TOKENS, repeated=-missing)
    return Finding(Verdict.WRONG_TOKENS)


def _counts_are_right(pieces: Sequence[Piece]) -> bool:
    """Return whether each message's running count is that of the tokens up to it."""
    total = 0
    for piece in pieces:
        total += len(piece.tokens)
        if piece.count != total:
            return False
    return True
