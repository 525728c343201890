"""How models write calls: JSON objects, a name before JSON, pairs in tags, Python. Each syntax reads one section.

A section that goes wrong before its call began is text, and is said as such. One that goes wrong later ends the call's
arguments so that they are valid, and what follows is text.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

from dormouse_worker.front.answers.argument_values import clean, object_json, value_json
from dormouse_worker.front.answers.closable_json import JsonWriter, Malformed, expect, read_text, read_value
from dormouse_worker.front.answers.emitter import Emitter
from dormouse_worker.front.answers.source import Source, Wait, read_until

MAX_NAME_CHARS = 256
_OTHER_KEYS = frozenset({"type", "id"})  # where nothing else says that it is a call


@dataclass(frozen=True, slots=True)
class MemberNames:
    """What the members of a call as a JSON object are called."""

    name: frozenset[str]
    arguments: frozenset[str]


USUAL_NAMES = MemberNames(frozenset({"name"}), frozenset({"arguments", "parameters"}))


class CallSyntax(Protocol):
    """Reads one section of calls."""

    @property
    def opening(self) -> str:
        """Return the marker that begins a section."""

    def read(self, source: Source, out: Emitter) -> Wait:
        """Read a section behind its marker, with what ends it. Raises Malformed; `source` then has its mark set."""


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """`OPENING {"name": …, "arguments": {…}} CLOSING`, or a list of such objects, or several one behind the other."""

    opening: str
    closing: str = ""
    separator: str = ""  # between objects

    def read(self, source: Source, out: Emitter) -> Wait:
        """See CallSyntax."""
        if (yield from source.skip_space()) == "[":
            yield from read_objects(source, out)
        else:
            yield from read_object(source, out)
            while self.separator and (yield from source.skip_space()) == self.separator:
                source.take(1)
                yield from read_object(source, out)
        yield from _end(source, self.closing)


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """`OPENING PREFIX name NAME_END {…} CLOSING`. `or_json`: `JsonCalls` reads a list or object that stands there."""

    opening: str
    name_end: str
    closing: str = ""
    prefix: str = ""
    noise: str = ""  # what may stand between name and NAME_END, and all behind it
    or_json: bool = False

    def read(self, source: Source, out: Emitter) -> Wait:
        """See CallSyntax."""
        first = yield from source.skip_space()
        if self.or_json and first in {"[", "{"}:
            yield from JsonCalls(self.opening, self.closing).read(source, out)
            return
        if self.prefix and not (yield from source.starts_with(self.prefix)):
            raise Malformed(f"no {self.prefix!r} before a name")
        name = yield from read_name(source, self.name_end)
        yield from read_arguments(source, begin(source, out, _before(name, self.noise)))
        yield from _end(source, self.closing)


@dataclass(frozen=True, slots=True)
class PairCalls:
    """`OPENING [NAME_OPENING] name KEY_OPENING key KEY_CLOSING [VALUE_OPENING] value VALUE_CLOSING … CLOSING`.

    A value is text if the tool's schema says string or if it is no JSON; else JSON.
    """

    opening: str
    closing: str
    key_opening: str
    key_closing: str
    value_closing: str
    value_opening: str = ""
    name_opening: str = ""
    name_closing: str = ""

    def read(self, source: Source, out: Emitter) -> Wait:
        """See CallSyntax."""
        if self.name_opening:
            yield from source.skip_space()
            if not (yield from source.starts_with(self.name_opening)):
                raise Malformed(f"no {self.name_opening!r}")
        ends = [marker for marker in (self.name_closing, self.key_opening, self.closing) if marker]
        text, marker = yield from read_until(source, ends)
        name = checked_name(text)
        if not marker:
            raise Malformed("a name is not ended")
        json_out = begin(source, out, name)
        json_out.open("{", "}")
        if marker == self.name_closing:
            _, marker = yield from read_until(source, [self.key_opening, self.closing])
        yield from self._read_pairs(source, json_out, out.tools.get(name, {}), marker)
        json_out.close()

    def _read_pairs(self, source: Source, out: JsonWriter, schema: Any, marker: str) -> Wait:
        comma = ""
        while marker == self.key_opening:
            key, marker = yield from read_until(source, [self.key_closing, self.closing])
            if self.value_opening and marker == self.key_closing:
                _, marker = yield from read_until(source, [self.value_opening, self.closing])
            if marker == self.closing:
                return
            value, ended = yield from read_until(source, [self.value_closing])
            if ended:
                out.text(f"{comma}{json.dumps(clean(key.strip()))}:{value_json(value, key.strip(), schema)}")
                comma = ","
            _, marker = yield from read_until(source, [self.key_opening, self.closing])


def read_objects(
    source: Source, out: Emitter, required: frozenset[str] | None = None, *, names: MemberNames = USUAL_NAMES
) -> Wait:
    """Read a JSON list of calls. Raises Malformed."""
    yield from expect(source, "[")
    while (yield from source.skip_space()) != "]":
        yield from read_object(source, out, required, names=names)
        if (yield from source.skip_space()) != "]":
            yield from expect(source, ",")
    source.take(1)


def read_object(
    source: Source, out: Emitter, required: frozenset[str] | None = None, *, names: MemberNames = USUAL_NAMES
) -> Wait:
    """Read one call as a JSON object; `required`: the only names that make it one. Raises Malformed."""
    pieces: list[str] = []
    name = yield from _read_members(source, out, pieces, required, names)
    if name is not None:
        begin(source, out, name).text("".join(pieces) or "{}")
    source.mark()


def _read_members(
    source: Source, out: Emitter, held: list[str], required: frozenset[str] | None, names: MemberNames
) -> Generator[None, None, str | None]:
    """Read an object's members; return the name of a call that has not begun yet: its arguments are held, or none."""
    name: str | None = None
    has_begun = False
    yield from expect(source, "{")
    while (yield from source.skip_space()) != "}":
        key = yield from read_text(source)
        yield from expect(source, ":")
        if key in names.name and name is None:
            name = checked_name((yield from read_text(source)), required)
        elif key in names.arguments and name is not None and not has_begun and not held:
            has_begun = True
            yield from read_arguments(source, begin(source, out, name))
        elif key in names.arguments and not has_begun and not held:
            yield from read_arguments(source, JsonWriter(held.append))
        elif required is None or key in _OTHER_KEYS:
            yield from read_value(source, JsonWriter(lambda _: None))
        else:
            raise Malformed(f"{key!r} is no member of a call")
        if (yield from source.skip_space()) != "}":
            yield from expect(source, ",")
    source.take(1)
    if name is None:
        raise Malformed("an object without a name is no call")
    return None if has_begun else name


def read_arguments(source: Source, out: JsonWriter) -> Wait:
    """Read a call's arguments: an object, one written as a string, or null. Raises Malformed, with all closed."""
    try:
        yield from _read_arguments(source, out)
    except Malformed:
        if not out.has_written:
            out.text("{}")
        out.close_all()
        raise


def _read_arguments(source: Source, out: JsonWriter) -> Wait:
    first = yield from source.skip_space()
    if first == '"':
        out.text(object_json((yield from read_text(source))))
    elif first == "{":
        yield from read_value(source, out)
    elif (yield from source.starts_with("null")):
        out.text("{}")
    else:
        raise Malformed("arguments are no object")


def begin(source: Source, out: Emitter, name: str) -> JsonWriter:
    """Begin a call: what was read is not given back as text any more."""
    source.forget_mark()
    return out.begin_call(name)


def read_name(source: Source, end: str) -> Generator[None, None, str]:
    """Read a function's name up to a marker. Raises Malformed."""
    text, marker = yield from read_until(source, [end])
    if not marker:
        raise Malformed("a name is not ended")
    return checked_name(text)


def checked_name(text: str, required: frozenset[str] | None = None) -> str:
    """Return a function's name without white space around. Raises Malformed."""
    name = clean(text.strip())
    if not name or len(name) > MAX_NAME_CHARS or any(character.isspace() for character in name):
        raise Malformed(f"{name[:40]!r} is no function's name")
    if required is not None and name not in required:
        raise Malformed(f"{name!r} is none of the tools")
    return name


def _end(source: Source, closing: str) -> Wait:
    source.mark()
    if closing:
        yield from source.skip_space()
        if not (yield from source.starts_with(closing)) and source.unread:
            raise Malformed(f"no {closing!r} behind a call")


def _before(text: str, marker: str) -> str:
    return text.partition(marker)[0] if marker else text
