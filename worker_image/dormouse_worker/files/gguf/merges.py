"""What scores of tokens stand for: SentencePiece joins the two neighbours whose outcome scores best. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Merge = tuple[str, str]


def merges_of_scores(tokens: Sequence[str], scores: Sequence[float]) -> list[Merge]:
    """Return all pairs of tokens that make a token, in the order in which they are to be made.

    Of two outcomes the one with the higher score goes first; where scores are equal, the one with the shorter parts.
    """
    places = {token: number for number, token in reversed(list(enumerate(tokens)))}
    found = [
        (-scores[number], len(first), len(second), number, places[first], first, second)
        for token, number in places.items()
        for first, second in _halves(token, places)
    ]
    return [(first, second) for *_, first, second in sorted(found)]


def _halves(token: str, places: Mapping[str, int]) -> Iterator[Merge]:
    for cut in range(1, len(token)):
        if token[:cut] in places and token[cut:] in places:
            yield token[:cut], token[cut:]
