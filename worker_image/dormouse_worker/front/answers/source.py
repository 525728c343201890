"""The text that is parsed: what has come of it and is not yet read. Reading waits by yielding.

A reader is a generator. It yields where it needs more text, and goes on when there is more or the text has ended.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence

import regex

Wait = Generator[None, None, None]
_SPACE = re.compile(r"[ \t\r\n]*")
_NUM_BEHIND = 64  # characters that are kept when they are read: for expressions that look behind


class Source:
    """Owns the text that nobody has read yet, and what was read since a mark."""

    def __init__(self) -> None:
        self.is_ended = False
        self._text = ""
        self._at = 0  # [_at, end) is unread
        self._mark: int | None = None  # [_mark, _at) can be given back

    def __repr__(self) -> str:
        return f"Source({len(self._text) - self._at} unread{', ended' if self.is_ended else ''})"

    def append(self, text: str) -> None:
        """Take more of the text."""
        dropped = max(0, (self._at if self._mark is None else self._mark) - _NUM_BEHIND)
        self._text = self._text[dropped:] + text
        self._at -= dropped
        self._mark = None if self._mark is None else self._mark - dropped

    @property
    def unread(self) -> str:
        """Return what is there and not read."""
        return self._text[self._at :]

    @property
    def is_cut(self) -> bool:
        """Return whether nothing is left and nothing comes any more."""
        return self.is_ended and self._at == len(self._text)

    @property
    def at(self) -> int:
        """Return where in the text the unread begins, until more of it comes."""
        return self._at

    @property
    def end(self) -> int:
        """Return where it ends."""
        return len(self._text)

    def take(self, num_chars: int) -> str:
        """Read this many characters, which are there."""
        taken = self._text[self._at : self._at + num_chars]
        self._at += num_chars
        return taken

    def mark(self) -> None:
        """Remember what is read from here on."""
        self._mark = self._at

    def forget_mark(self) -> None:
        """Keep nothing that was read."""
        self._mark = None

    def give_back(self) -> str:
        """Forget the mark; return what was read since it was set."""
        start, self._mark = self._mark, None
        return "" if start is None else self._text[start : self._at]

    def peek(self) -> Generator[None, None, str]:
        """Return the next character without reading it; "" at the end."""
        while self._at == len(self._text) and not self.is_ended:
            yield
        return self._text[self._at : self._at + 1]

    def skip_space(self) -> Generator[None, None, str]:
        """Read JSON's white space; return the character behind it without reading it, "" at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text) or self.is_ended:
                return self._text[self._at : self._at + 1]
            yield

    def starts_with(self, marker: str) -> Generator[None, None, bool]:
        """Return whether the unread text begins with a marker, and read it if so."""
        while not self.is_ended and len(self._text) - self._at < len(marker):
            if not marker.startswith(self._text[self._at :]):
                return False
            yield
        if not self._text.startswith(marker, self._at):
            return False
        self._at += len(marker)
        return True

    def match(self, pattern: re.Pattern[str]) -> str:
        """Read what a pattern matches of what is there, maybe nothing. Never waits."""
        found = pattern.match(self._text, self._at)
        if not found:
            return ""
        self._at = found.end()
        return found.group()

    def search(self, pattern: regex.Pattern[str], *, timeout_s: float) -> regex.Match[str] | None:
        """Return the first match, also one of which the rest is yet to come; nothing is read. Raises TimeoutError."""
        return pattern.search(self._text, self._at, partial=not self.is_ended, timeout=timeout_s)

    def find(self, markers: Sequence[str]) -> tuple[int, str] | None:
        """Return how many characters stand before the first of the markers, and which it is; the longest at a place."""
        hits = [(at - self._at, -len(marker), marker) for marker in markers if (at := self._find(marker)) >= 0]
        if not hits:
            return None
        before, _, marker = min(hits)
        return before, marker

    def num_safe(self, markers: Sequence[str]) -> int:
        """Return how many unread characters cannot belong to a marker of which more is to come."""
        unread = len(self._text) - self._at
        longest = max(map(len, markers), default=0)
        for num_held in range(min(longest - 1, unread), 0, -1):
            if any(marker.startswith(self._text[-num_held:]) for marker in markers):
                return unread - num_held
        return unread

    def _find(self, marker: str) -> int:
        return self._text.find(marker, self._at)


def read_until(source: Source, markers: Sequence[str]) -> Generator[None, None, tuple[str, str]]:
    """Read a text up to a marker and the marker; return both. At the end of the source the marker is ""."""
    while (found := source.find(markers)) is None:
        if source.is_ended:
            return source.take(len(source.unread)), ""
        yield
    before, marker = found
    text = source.take(before)
    source.take(len(marker))
    return text, marker
