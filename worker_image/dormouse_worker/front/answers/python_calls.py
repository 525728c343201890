"""Calls as a Python list, `[weather(city="Oslo", days=2)]`: names, and arguments by keyword that are literals."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Generator

from dormouse_worker.front.answers.calls import begin, checked_name
from dormouse_worker.front.answers.closable_json import MAX_DEPTH, JsonWriter, Malformed, expect
from dormouse_worker.front.answers.emitter import Emitter
from dormouse_worker.front.answers.source import Source, Wait

MAX_LITERAL_CHARS = 65_536  # of one argument: it is read at once when it is whole
_WORD = re.compile(r"[\w.-]+")
_RUN = re.compile(r"[^'\"\\()\[\]{},]+")
_IN_STRING = re.compile(r"[^'\"\\]+")
_OPENS, _CLOSES = "([{", ")]}"


def read_python_calls(source: Source, out: Emitter) -> Wait:
    """Read a list of calls of known tools. Raises Malformed."""
    yield from expect(source, "[")
    while (yield from source.skip_space()) != "]":
        name = checked_name((yield from _read_word(source)), frozenset(out.tools))
        yield from expect(source, "(")
        yield from _read_keywords(source, begin(source, out, name))
        source.mark()
        if (yield from source.skip_space()) != "]":
            yield from expect(source, ",")
    source.take(1)


def _read_keywords(source: Source, out: JsonWriter) -> Wait:
    out.open("{", "}")
    try:
        comma = ""
        while (yield from source.skip_space()) != ")":
            key = yield from _read_word(source)
            yield from expect(source, "=")
            out.text(f"{comma}{json.dumps(key)}:{_literal_json((yield from _read_literal(source)))}")
            comma = ","
            if (yield from source.skip_space()) != ")":
                yield from expect(source, ",")
        source.take(1)
    finally:
        out.close_all()


def _read_word(source: Source) -> Generator[None, None, str]:
    yield from source.skip_space()
    word = source.match(_WORD)
    while (yield from source.peek()) and (more := source.match(_WORD)):
        word += more
    if not word:
        raise Malformed("no name where one has to be")
    return word


def _read_literal(source: Source) -> Generator[None, None, str]:
    """Read up to the comma or bracket that ends an argument. Raises Malformed."""
    pieces: list[str] = []
    depth = num_chars = 0
    while True:
        character = yield from source.peek()
        if not character or num_chars > MAX_LITERAL_CHARS or depth > MAX_DEPTH:
            raise Malformed("an argument is not ended")
        if depth == 0 and character in {",", ")"}:
            return "".join(pieces)
        if character in {"'", '"'}:
            piece = yield from _read_quoted(source)
        else:
            piece = source.match(_RUN) or source.take(1)
            depth += (piece in _OPENS) - (piece in _CLOSES)
        pieces.append(piece)
        num_chars += len(piece)


def _read_quoted(source: Source) -> Generator[None, None, str]:
    quote = source.take(1)
    pieces = [quote]
    num_chars = 0
    while True:
        pieces.append(source.match(_IN_STRING))
        num_chars += len(pieces[-1])
        character = yield from source.peek()
        if not character or num_chars > MAX_LITERAL_CHARS:
            raise Malformed("a string is not ended")
        pieces.append(source.take(1))
        num_chars += 1
        if character == "\\":
            yield from source.peek()
            pieces.append(source.take(1))
        elif character == quote:
            return "".join(pieces)


def _literal_json(text: str) -> str:
    """Return a JSON value, or else a Python literal, as JSON. Raises Malformed."""
    for read in (json.loads, ast.literal_eval):
        try:
            return json.dumps(read(text.strip()), separators=(",", ":"), allow_nan=False)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
    raise Malformed(f"{text[:40]!r} is no literal")
