"""One sequence's tokens become text: decoding, stop strings, and what the caller has already. Pure.

text so far = given out | held back
given out   = known to the caller | new      only of a resumed sequence is a part known: by its length in bytes
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from dormouse_worker.front.text.decoding import Decoder
from dormouse_worker.front.text.stops import StopSearch


@dataclass(frozen=True, slots=True)
class TextRules:
    """How tokens become text, and which text ends it."""

    decoder: Decoder
    stops: Sequence[str] = ()
    include_stop: bool = False
    min_tokens: int = 0
    grammar_end_token_ids: frozenset[int] = frozenset()  # end the text whatever min_tokens says


class Resumed(NamedTuple):
    """Where a sequence stands that another worker began."""

    known_text: str  # what the caller has
    text: str  # given out by its tokens, but not known to the caller
    finish_reason: str | None  # set = it had ended already
    matched_stop: str | None


class TextAssembly:
    """Owns one sequence's decoder and stop search. Fed token by token, it gives the same text however it was cut."""

    def __init__(self, rules: TextRules) -> None:
        self._rules = rules
        self._search = StopSearch(rules.stops, include_in_output=rules.include_stop)
        self._num_known_chars = 0  # so many of the next characters the caller has
        self.num_tokens = 0
        self.matched_stop: str | None = None  # the stop string at which the text ended

    def __repr__(self) -> str:
        return f"TextAssembly({self.num_tokens} tokens, {self._search!r})"

    def step(self, token_id: int, *, is_end: bool) -> str:
        """Return the text of one token. The token that ended the text is part of it only if stops are included."""
        self.num_tokens += 1
        rules = self._rules
        if is_end and not rules.include_stop:
            return ""
        text = self._searched(rules.decoder.step(token_id))
        return self._new(text) if self._num_known_chars else text

    def flush(self) -> str:
        """Return what was held back: the tokens have ended. A stop string can be among it."""
        return self._new(self._rest())

    def break_off(self) -> str:
        """Return what was held back for a stop string. Half a character is not given out: it goes on elsewhere."""
        return self._new(self._search.flush())

    def _searched(self, text: str) -> str:
        """Return what of a piece may be given out now."""
        rules = self._rules
        if rules.stops:
            is_searched = self.num_tokens > rules.min_tokens
            text = self._search.feed(text) if is_searched else self._search.pass_by(text)
            self.matched_stop = self._search.matched
        return text

    def _rest(self) -> str:
        """Return what nothing follows any more: bytes that are no character, and the begin of a stop string."""
        text = self._searched(self._rules.decoder.flush())
        return text if self.matched_stop is not None else text + self._search.flush()

    def resume(self, token_ids: Sequence[int], end_token_ids: Set[int], *, emitted_utf8_bytes: int) -> Resumed:
        """Take what another worker generated, of whose text the caller has the first bytes. Once, and first.

        Raises ValueError saying which numbers of bytes there can be.
        """
        given, reason = [], None
        for token_id in token_ids:
            is_late_enough = self.num_tokens >= self._rules.min_tokens
            is_end = token_id in (end_token_ids if is_late_enough else self._rules.grammar_end_token_ids)
            given.append(self.step(token_id, is_end=is_end))
            if is_end or self.matched_stop is not None:
                reason = "stop"
                break
        if reason is not None and self.matched_stop is None:
            given.append(self._rest())
        known, new = self._parted("".join(given), emitted_utf8_bytes)
        return Resumed(known, new, reason, self.matched_stop)

    def _parted(self, given: str, emitted_utf8_bytes: int) -> tuple[str, str]:
        """Return what the caller has, and what he does not have of the text given out; note what he has beyond it."""
        text = (given + self._search.held).encode()
        known = text[:emitted_utf8_bytes].decode(errors="ignore")
        if len(known.encode()) < emitted_utf8_bytes:
            raise ValueError(f"at most {len(text)}, the text of the resumed tokens, and never within a character")
        self._num_known_chars = max(0, len(known) - len(given))
        return known, given[len(known) :]

    def _new(self, text: str) -> str:
        """Return the part that the caller does not have."""
        num_known = min(self._num_known_chars, len(text))
        self._num_known_chars -= num_known
        return text[num_known:]
