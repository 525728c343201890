"""One answer's parser: fed with text as it comes, it tells what is said, thought and called.

text ──▶ reasoning? ──▶ calls without a marker? ──▶ content, and sections of calls
"""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_worker.front.answers.calls import CallSyntax, begin, read_arguments, read_object, read_objects
from dormouse_worker.front.answers.closable_json import Malformed
from dormouse_worker.front.answers.emitter import Emitter, ToolSchemas
from dormouse_worker.front.answers.events import Event
from dormouse_worker.front.answers.families import ReasoningFamily, ToolFamily
from dormouse_worker.front.answers.harmony import MARKERS as HARMONY_MARKERS
from dormouse_worker.front.answers.harmony import read_harmony
from dormouse_worker.front.answers.python_calls import read_python_calls
from dormouse_worker.front.answers.response_reader import Reading
from dormouse_worker.front.answers.response_template import Kind, ResponseTemplate
from dormouse_worker.front.answers.sections import pass_on
from dormouse_worker.front.answers.source import Source, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What one answer is written in."""

    tools: ToolFamily | None = None  # None: calls are text
    reasoning: ReasoningFamily | None = None
    begins_in_reasoning: bool = False  # the prompt ends with the marker
    is_harmony: bool = False
    forced: str | None = None  # the answer is arguments of this function; "" = a list of calls
    is_single: bool = False  # only the first call is told
    response: ResponseTemplate | None = None  # the checkpoint's own description, by which all is read
    told: frozenset[Kind] = frozenset()  # of its parts; others are content as they stand
    begun: str = ""  # what the prompt has of the answer, for such a description

    @property
    def reads_thoughts(self) -> bool:
        """Return whether thoughts are read as a family's, before everything else."""
        return self.reasoning is not None and not (self.response and "reasoning" in self.told)

    @property
    def markers(self) -> frozenset[str]:
        """Return what may stand in a text beside what it says."""
        of_reasoning = {self.reasoning.opening, self.reasoning.closing} if self.reasoning else set()
        of_calls = self.tools.markers if self.tools else frozenset[str]()
        of_all = HARMONY_MARKERS if self.is_harmony else self.response.markers if self.response else frozenset[str]()
        return of_calls | of_reasoning | of_all


class AnswerParser:
    """Owns how far one answer was read. The same events come, joined, however the text is cut."""

    def __init__(self, grammar: Grammar, schemas: ToolSchemas) -> None:
        self._grammar = grammar
        self._source = Source()
        self._out = Emitter(schemas, is_single=grammar.is_single)
        self._reader = self._read()
        if grammar.begun:
            self.feed(grammar.begun)  # and nothing of it is told

    def __repr__(self) -> str:
        return f"AnswerParser({self._source!r}, {self._out!r})"

    @property
    def num_calls(self) -> int:
        """Return how many calls have begun."""
        return self._out.num_calls

    def feed(self, text: str) -> list[Event]:
        """Take more of the answer; return what is known of it now."""
        self._source.append(text)
        self._advance()
        return self._out.take()

    def finish(self) -> list[Event]:
        """Return the rest: the answer has ended. Once, and last."""
        self._source.is_ended = True
        self._advance()
        self._out.finish()
        return self._out.take()

    def _advance(self) -> None:
        next(self._reader, None)  # one that is through has nothing to add

    def _read(self) -> Wait:
        grammar, source, out = self._grammar, self._source, self._out
        if grammar.is_harmony:
            yield from read_harmony(source, out)
            return
        if grammar.reads_thoughts:
            yield from _read_reasoning(source, out, grammar)
        if grammar.response:
            yield from Reading(grammar.response, source, out, grammar.told).read()
            return
        if grammar.forced is not None:
            yield from _read_forced(source, out, grammar.forced)
        elif grammar.tools and grammar.tools.bare:
            yield from _read_bare(source, out, grammar.tools)
        yield from _read_content(source, out, grammar.tools)


def _read_reasoning(source: Source, out: Emitter, grammar: Grammar) -> Wait:
    family = grammar.reasoning
    assert family is not None
    if not grammar.begins_in_reasoning:
        source.mark()
        yield from source.skip_space()
        if not (yield from source.starts_with(family.opening)):
            out.content(source.give_back())
            return
        source.forget_mark()
    out.part()
    yield from pass_on(source, (family.closing,), out.reasoning)
    out.part()


def _read_content(source: Source, out: Emitter, family: ToolFamily | None) -> Wait:
    sections: dict[str, CallSyntax] = {section.opening: section for section in family.sections} if family else {}
    markers = (*sections, *(family.noise if family else ()))
    while marker := (yield from pass_on(source, markers, out.content)):
        if marker in sections:
            yield from _read_section(source, out, sections[marker])
        else:
            out.part()


def _read_section(source: Source, out: Emitter, section: CallSyntax) -> Wait:
    source.mark()
    num_calls = out.num_calls
    try:
        yield from section.read(source, out)
    except Malformed:
        begun = "" if out.num_calls > num_calls else section.opening
        out.content(begun + source.give_back())
        return
    source.forget_mark()
    out.part()


def _read_bare(source: Source, out: Emitter, family: ToolFamily) -> Wait:
    """Read calls at the begin of a text; it is text if they are none."""
    source.mark()
    first = yield from source.skip_space()
    for marker in family.noise:
        if (yield from source.starts_with(marker)):
            first = yield from source.skip_space()
    try:
        if family.bare == "json" and first in {"{", "["}:
            yield from _read_json_calls(source, out, first)
        elif family.bare == "python":
            yield from read_python_calls(source, out)
        else:
            out.content(source.give_back())
    except Malformed:
        out.content(source.give_back())
    source.forget_mark()


def _read_json_calls(source: Source, out: Emitter, first: str) -> Wait:
    if first == "[":
        yield from read_objects(source, out, frozenset(out.tools))
    while first == "{":
        yield from read_object(source, out, frozenset(out.tools))
        first = yield from source.skip_space()
        if first in {";", ","}:
            source.take(1)
            first = yield from source.skip_space()


def _read_forced(source: Source, out: Emitter, name: str) -> Wait:
    """Read a text that a grammar made: arguments of one function, or a list of calls. What is cut off is nobody's."""
    source.mark()
    try:
        if not (yield from source.skip_space()):
            source.forget_mark()  # cut before a call began
        elif name:
            yield from read_arguments(source, begin(source, out, name))
        else:
            yield from read_objects(source, out)
    except Malformed:
        read = source.give_back()
        out.content("" if source.is_cut else read)
    source.forget_mark()
