"""Reads an answer by its checkpoint's `response_template`: regions, and the text between them, as they come.

The first delimiter wins, at one place the longest. What may still become one is held; the rest is told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import regex

from dormouse_worker.front.answers.closable_json import Malformed
from dormouse_worker.front.answers.emitter import Emitter
from dormouse_worker.front.answers.response_calls import SEARCH_TIMEOUT_S, CallReader
from dormouse_worker.front.answers.response_template import Anchor, Field, Kind, ResponseTemplate
from dormouse_worker.front.answers.source import Source, Wait

MAX_HELD_CHARS = 4096  # of what may become a delimiter
MAX_EMPTY_DELIMITERS = 8  # at one place: expressions that match nothing at all would go on for ever
Watched = Sequence[tuple[Anchor, Field | None]]  # the field that an anchor opens; None: it closes what is open
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Found:
    """A delimiter that was read."""

    opens: Field | None
    text: str
    captures: Mapping[str, str]


@dataclass(slots=True)
class Reading:
    """Owns one answer: what is there of it, what is told of it, and which regions it had."""

    template: ResponseTemplate
    source: Source
    out: Emitter
    told: frozenset[Kind]  # other regions are content, with their delimiters
    seen: set[str] = field(default_factory=set)
    is_over: bool = False  # no delimiter is looked for any more
    num_empty: int = 0

    def read(self) -> Wait:
        """Read regions to the end."""
        leftover, unclaimed = self.template.leftover, list[str]()
        watched: list[tuple[Anchor, Field | None]] = [(one.opening, one) for one in self.template.fields if one.opening]
        if leftover and leftover.closing:
            watched.append((leftover.closing, None))
        say = self._say(leftover) if leftover else unclaimed.append
        while (found := (yield from self._until(watched, say))) is not None:
            unclaimed.clear()  # nobody's, in an answer that has regions
            if found.opens:
                yield from self._read_region(found, found.opens)
            else:
                self.out.part()
        if not self.seen:
            self.out.content("".join(unclaimed))  # not written in regions at all

    def _read_region(self, found: Found, region: Field) -> Wait:
        if region.kind not in self.told:
            yield from self._pass_on(found.text, region)
        elif region.calls is None:
            yield from self._read_text(region)
        elif region.calls.comes_in_pieces:
            yield from self._read_pieces(found, region, region.calls)
        else:
            yield from self._read_whole(found, region, region.calls)
        self.seen.add(region.name)

    def _read_text(self, region: Field) -> Wait:
        self.out.part()
        if region.join and region.name in self.seen:
            (self.out.verbatim_reasoning if region.kind == "reasoning" else self.out.verbatim_content)(region.join)
        yield from self._to_end(region, self._say(region))
        self.out.part()

    def _pass_on(self, begun: str, region: Field) -> Wait:
        """Say a region with its delimiters, or what is left of it."""
        self.out.content(begun)
        self.out.content((yield from self._to_end(region, self.out.content)))

    def _read_pieces(self, found: Found, region: Field, calls: CallReader) -> Wait:
        source, out, num_calls = self.source, self.out, self.out.num_calls
        source.mark()
        try:
            yield from calls.read_json(source, out, found.captures)
            source.mark()
            yield from self._to_end(region, _nothing)
            out.part()
        except Malformed:
            begun = "" if out.num_calls > num_calls else found.text
            yield from self._pass_on(begun + source.give_back(), region)
        source.forget_mark()

    def _read_whole(self, found: Found, region: Field, calls: CallReader) -> Wait:
        pieces: list[str] = []
        end = yield from self._to_end(region, pieces.append)
        try:
            calls.tell(self.out, found.captures, "".join(pieces))
        except Malformed:
            self.out.content(found.text + "".join(pieces) + end)
        else:
            self.out.part()

    def _to_end(self, region: Field, say: Say) -> Generator[None, None, str]:
        """Say a region's text, read what closes it and return that."""
        found = yield from self._until([(region.closing, None)] if region.closing else [], say)
        return found.text if found else ""

    def _say(self, region: Field) -> Say:
        if region.kind == "reasoning" and region.kind in self.told:
            return self.out.verbatim_reasoning if region.is_verbatim else self.out.reasoning
        return self.out.verbatim_content if region.is_verbatim else self.out.content

    def _until(self, watched: Watched, say: Say) -> Generator[None, None, Found | None]:
        """Say the text up to the first delimiter and read that; None at the end of the text."""
        source = self.source
        while True:
            first, num_safe = self._scan(watched)
            if first is None:
                say(source.take(len(source.unread) if source.is_ended else num_safe))
                if source.is_ended:
                    return None
                yield
                continue
            match, opens = first
            say(source.take(match.start() - source.at))
            self._count_empty(match)
            captures = {name: text for name, text in match.groupdict().items() if text is not None}
            return Found(opens, source.take(match.end() - match.start()), captures)

    def _scan(self, watched: Watched) -> tuple[tuple[regex.Match[str], Field | None] | None, int]:
        """Return the first delimiter that is certain, and how many characters can belong to none."""
        source = self.source
        best: tuple[tuple[int, int, bool], regex.Match[str], Field | None] | None = None
        held = source.end
        for anchor, opens in () if self.is_over else watched:
            match = self._search(anchor)
            if match is None:
                continue
            if not source.is_ended and (match.partial or _may_grow(match, anchor, source.end)):
                held = min(held, match.start())
                continue
            key = (match.start(), -len(match.group()), opens is None)
            if best is None or key < best[0]:
                best = key, match, opens
        if source.end - held > MAX_HELD_CHARS:
            self.is_over, held = True, source.end
        is_certain = best is not None and best[0][0] < held
        return (best[1:] if best and is_certain else None), held - source.at

    def _search(self, anchor: Anchor) -> regex.Match[str] | None:
        try:
            return self.source.search(anchor.pattern, timeout_s=SEARCH_TIMEOUT_S)
        except TimeoutError:
            self.is_over = True
            return None

    def _count_empty(self, match: regex.Match[str]) -> None:
        self.num_empty = 0 if match.end() > match.start() else self.num_empty + 1
        self.is_over = self.is_over or self.num_empty > MAX_EMPTY_DELIMITERS


def _may_grow(match: regex.Match[str], anchor: Anchor, end: int) -> bool:
    return match.end() == end and (match.start() == match.end() or anchor.can_grow)


def _nothing(text: str) -> None:
    """Take no text but white space. Raises Malformed."""
    if text.strip():
        raise Malformed("a call is not ended where it should be")
