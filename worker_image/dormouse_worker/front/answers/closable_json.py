"""JSON that is passed on while it is read, and can be closed at any time so that it is valid.

What is written so far lacks closing quotes and brackets at most: a comma and a key are held until their value begins,
numbers and words until they are whole, escapes until they are complete. So a call whose text ends early, or goes
wrong, still has arguments that every client can read. White space between the parts is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator

from dormouse_worker.front.answers.source import Source, Wait

MAX_DEPTH = 64  # brackets in brackets
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_CONTROL = re.compile(r"[\x00-\x1f]")
_BARE = re.compile(r'[^\s,:\[\]{}"]*')
_SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false|null")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_NUM_HEX = 4


class Malformed(Exception):
    """What was read is not what was expected there."""


class JsonWriter:
    """Owns what has to be written yet so that the JSON is closed."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._closing: list[str] = []
        self.has_written = False

    def __repr__(self) -> str:
        return f"JsonWriter({''.join(reversed(self._closing))!r} to come)"

    def text(self, text: str) -> None:
        """Write something that opens and closes nothing."""
        if text:
            self.has_written = True
            self._write(text)

    def open(self, text: str, closing: str) -> None:
        """Write the begin of something."""
        self.text(text)
        self._closing.append(closing)

    def close(self) -> None:
        """Write the end of what was opened last."""
        self._write(self._closing.pop())

    def close_all(self) -> None:
        """Make what was written valid, however far it has come."""
        while self._closing:
            self.close()


def read_value(source: Source, out: JsonWriter, lead: str = "", depth: int = 0) -> Wait:
    """Read one value and write it, `lead` before it as soon as it begins. Raises Malformed."""
    first = yield from source.skip_space()
    if depth > MAX_DEPTH:
        raise Malformed(f"more than {MAX_DEPTH} brackets in brackets")
    if first == '"':
        source.take(1)
        out.open(f'{lead}"', '"')
        yield from read_string(source, out.text)
        out.close()
    elif first == "{":
        yield from _read_object(source, out, lead, depth)
    elif first == "[":
        yield from _read_array(source, out, lead, depth)
    else:
        out.text(lead + (yield from read_scalar(source)))


def read_string(source: Source, write: Callable[[str], None]) -> Wait:
    """Read a string behind its opening quote, with the closing one; write what is between, escapes as they are.

    Line breaks and other control characters, which models write and JSON forbids, are escaped. Raises Malformed.
    """
    while True:
        write(source.match(_PLAIN))
        character = yield from source.peek()
        if not character:
            raise Malformed("a string is not ended")
        if character == "\\":
            write((yield from _read_escape(source)))
        elif _CONTROL.match(character):
            write(json.dumps(source.take(1))[1:-1])
        elif character == '"':
            source.take(1)
            return


def read_text(source: Source) -> Generator[None, None, str]:
    """Read a whole string with its quotes; return what it means. Raises Malformed."""
    if (yield from source.skip_space()) != '"':
        raise Malformed("no string where one has to be")
    source.take(1)
    pieces: list[str] = []
    yield from read_string(source, pieces.append)
    return str(json.loads(f'"{"".join(pieces)}"')).encode("utf-8", "replace").decode()  # half a surrogate is no text


def read_scalar(source: Source) -> Generator[None, None, str]:
    """Read a number, true, false or null. Raises Malformed."""
    word = source.match(_BARE)
    while (yield from source.peek()) and (more := source.match(_BARE)):
        word += more
    if not _SCALAR.fullmatch(word):
        raise Malformed(f"{word[:20]!r} is no value")
    return word


def expect(source: Source, character: str) -> Wait:
    """Read a character behind white space. Raises Malformed if there is another."""
    found = yield from source.skip_space()
    if found != character:
        raise Malformed(f"{found!r} where {character!r} has to be")
    source.take(1)


def _read_object(source: Source, out: JsonWriter, lead: str, depth: int) -> Wait:
    source.take(1)
    out.open(f"{lead}{{", "}")
    comma = ""
    while (yield from _has_next(source, "}", is_first=not comma)):
        key = json.dumps((yield from read_text(source)), ensure_ascii=False)
        yield from expect(source, ":")
        yield from read_value(source, out, f"{comma}{key}:", depth + 1)
        comma = ","
    out.close()


def _read_array(source: Source, out: JsonWriter, lead: str, depth: int) -> Wait:
    source.take(1)
    out.open(f"{lead}[", "]")
    comma = ""
    while (yield from _has_next(source, "]", is_first=not comma)):
        yield from read_value(source, out, comma, depth + 1)
        comma = ","
    out.close()


def _has_next(source: Source, closing: str, *, is_first: bool) -> Generator[None, None, bool]:
    """Return whether another item follows; reads the comma before it, or the closing bracket. Raises Malformed."""
    found = yield from source.skip_space()
    if found == closing:
        source.take(1)
        return False
    if not is_first:
        yield from expect(source, ",")
    return True


def _read_escape(source: Source) -> Generator[None, None, str]:
    """Read a whole escape; return it as JSON knows it. One that it does not know is a backslash that is meant."""
    source.take(1)
    kind = yield from source.peek()
    if kind == "u":
        while len(source.unread) <= _NUM_HEX and not source.is_ended:
            yield
        is_whole = _HEX.fullmatch(source.unread[1 : 1 + _NUM_HEX])
        return "\\" + source.take(1 + _NUM_HEX) if is_whole else "\\\\"
    if not kind:
        raise Malformed("a string ends within an escape")
    return "\\" + source.take(1) if kind in '"\\/bfnrt' else "\\\\"
