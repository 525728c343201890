"""Finds stop strings in a text that arrives in pieces. Pure; the outcome does not depend on how the text was cut.

held = the longest end of the text so far that could still become a stop string
text so far = given out | held          each new piece is appended to held and searched
"""

from __future__ import annotations

from collections.abc import Sequence


class StopSearch:
    """Searches one sequence's text. The match that is complete first wins; of those the longest."""

    def __init__(self, stops: Sequence[str], *, include_in_output: bool) -> None:
        self._stops = tuple(stops)
        self._include = include_in_output
        self._max_held = max((len(stop) for stop in stops), default=1) - 1
        self._held = ""
        self.matched: str | None = None  # the stop string that ended the text

    def __repr__(self) -> str:
        return f"StopSearch({len(self._stops)} stops, {len(self._held)} characters held)"

    @property
    def held(self) -> str:
        """Return what is held back: it could still become a stop string."""
        return self._held

    def feed(self, text: str) -> str:
        """Take a piece and return what may be given out now; after a match nothing more may be fed."""
        text = self._held + text
        ends = [(text.index(stop) + len(stop), text.index(stop), stop) for stop in self._stops if stop in text]
        if ends:
            end, start, self.matched = min(ends)
            self._held = ""
            return text[: end if self._include else start]
        keep = self._num_held(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def pass_by(self, text: str) -> str:
        """Take a piece in which stop strings do not count (min_tokens is not reached), and return what goes out."""
        return self.flush() + text

    def flush(self) -> str:
        """Return what was held back: the text has ended without a match."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, text: str) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        for length in range(min(self._max_held, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
