"""What earlier answers said, as drafts for those that come: each caller's apart, bounded, the oldest forgotten first.

    a place     old | young      texts of answers behind each other; the young one grows

A place is a cache salt and an adapter: what shares cached prefixes shares these. When a young text is full it becomes
the old one, and what the old one held is forgotten. Where there are too many places the one that nobody asked for
longest goes as a whole. Whoever follows a text keeps it until it is done.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from dormouse_worker.engine.drafts.text import Follower, IndexedText

RUN_LENGTHS = 8, 4  # tokens that must be equal: more than within one text, for other answers are about other things
MAX_PLACES = 16  # of some 800 KiB each
MAX_TEXT_TOKENS = 8192
MAX_ANSWER_TOKENS = MAX_TEXT_TOKENS // 2  # of one answer, its first ones

Name = tuple[str, str]  # a salt, an adapter


class Place:
    """Owns the answers of one caller."""

    def __init__(self) -> None:
        self.texts = (_make_text(), _make_text())  # young, old

    def __repr__(self) -> str:
        return f"Place({self.texts})"

    def add(self, token_ids: Sequence[int]) -> None:
        """Remember an answer, with what stands before it."""
        token_ids = token_ids[:MAX_ANSWER_TOKENS]
        if len(self.texts[0].tokens) + len(token_ids) > MAX_TEXT_TOKENS:
            self.texts = _make_text(), self.texts[0]
        self.texts[0].tokens.extend(token_ids)


class Recall:
    """Implements `Proposer`: follows an answer of a place, and looks for another where it says something else."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._follower = Follower(place.texts[0])

    def __repr__(self) -> str:
        return f"Recall({self._follower!r})"

    def propose(self, sequence: list[int], count: int) -> list[int]:
        """See `Proposer`: where it follows, then of the young text, then of the old one."""
        for follower in (self._follower, *map(Follower, self._place.texts)):
            if found := follower.propose(sequence, count):
                self._follower = follower
                return found
        return []


class EarlierAnswers:
    """Owns the places."""

    def __init__(self) -> None:
        self._places: OrderedDict[Name, Place] = OrderedDict()  # that used longest ago first

    def __repr__(self) -> str:
        return f"EarlierAnswers({len(self._places)} places)"

    def of(self, name: Name) -> Place:
        """Return a place, empty if it is new."""
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = Place()
        self._places.move_to_end(name)
        if len(self._places) > MAX_PLACES:
            self._places.popitem(last=False)
        return place

    def clear(self) -> None:
        """Forget all of them."""
        self._places.clear()


def _make_text() -> IndexedText:
    return IndexedText(MAX_TEXT_TOKENS, RUN_LENGTHS)
