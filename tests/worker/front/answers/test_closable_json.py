"""JSON that is passed on while it is read: what is written, when, and how it is closed wherever the text ends."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.front.answers.closable_json import (
    MAX_DEPTH,
    JsonWriter,
    Malformed,
    expect,
    read_scalar,
    read_string,
    read_text,
    read_value,
)
from dormouse_worker.front.answers.source import Source


class Reading:
    """Reads one value from a text that comes in pieces."""

    def __init__(self):
        self.source, self.written = Source(), []
        self.writer = JsonWriter(self.written.append)
        self.steps = read_value(self.source, self.writer)
        self.is_over = False

    def take(self, text="", *, is_last=False):
        """Read on; return what has been written since the last time."""
        self.source.append(text)
        self.source.is_ended = is_last
        before = len(self.written)
        if not self.is_over:
            self.is_over = next(self.steps, "over") == "over"
        return "".join(self.written[before:])

    def closed(self):
        self.writer.close_all()
        return "".join(self.written)


def read(text):
    """Return what is written of a whole text, and what stays unread."""
    reading = Reading()
    reading.take(text, is_last=True)
    assert reading.is_over
    return "".join(reading.written), reading.source.unread


def whole(reader, text):
    """Run a reader over a text that has ended; return what it returns, and what stays unread."""
    source = Source()
    source.append(text)
    source.is_ended = True
    steps = reader(source)
    with pytest.raises(StopIteration) as over:
        next(steps)
    return over.value.value, source.unread


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("{}", "{}"),
        ("[]", "[]"),
        ('""', '""'),
        (" { } ", "{}"),
        ('{"a":1}', '{"a":1}'),
        ('{ "a" : 1 , "b" : [ true , null ] }', '{"a":1,"b":[true,null]}'),
        ('[[], {}, "x", -1.5e+3]', '[[],{},"x",-1.5e+3]'),
        ('{"ü": "é"}', '{"ü":"é"}'),
        (r'"\n\"\\\/\b\f\r\tA"', r'"\n\"\\\/\b\f\r\tA"'),
        ('"a\nb\tc\x00"', r'"a\nb\tc\u0000"'),
        (r'"\d \X \u12 \u12G4"', r'"\\d \\X \\u12 \\u12G4"'),
        ("0", "0"),
        ("false", "false"),
    ],
)
def test_a_value_is_written_without_the_space_between_its_parts(text, written):
    assert read(text)[0] == written
    json.loads(written)


@pytest.mark.parametrize("text", ["{} x", '"a" x', "[1] x", "12 x", "null x"])
def test_what_stands_behind_a_value_is_left(text):
    assert read(text)[1] == " x"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nope", "'nope' is no value"),
        ("01", "'01' is no value"),
        ("1.", "'1.' is no value"),
        ("x" * 30, f"'{'x' * 20}' is no value"),
        ("", "'' is no value"),
        ("]", "'' is no value"),
        ('{"a" 1}', "'1' where ':' has to be"),
        ('{"a":1 "b":2}', "'\"' where ',' has to be"),
        ("[1 2]", "'2' where ',' has to be"),
        ("{1:2}", "no string where one has to be"),
        ('{"a"', "'' where ':' has to be"),
        ("[1", "'' where ',' has to be"),
        ("[1,]", "'' is no value"),
        ('{"a":1,}', "no string where one has to be"),
        ('"a', "a string is not ended"),
        ('"a\\', "a string ends within an escape"),
    ],
)
def test_what_is_malformed_is_told_with_what_stands_there(text, words):
    with pytest.raises(Malformed, match=f"^{re.escape(words)}$"):
        read(text)


@pytest.mark.parametrize("brackets", ["[]", '{"a":}'])
def test_brackets_are_bounded(brackets):
    opening, closing = brackets[:-1], brackets[-1]
    deepest = opening * MAX_DEPTH + "0" + closing * MAX_DEPTH
    assert read(deepest)[0] == deepest
    with pytest.raises(Malformed, match=r"^more than 64 brackets in brackets$"):
        read(opening * (MAX_DEPTH + 1) + "0")


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        (['{"a', '": ', "1", "2", "}"], ["{", "", "", "", '"a":12}']),
        (['"a', "b", '"'], ['"a', "b", '"']),
        (['"a\\', "n"], ['"a', "\\n"]),
        (['"\\u0', "04", "1", "x"], ['"', "", "\\u0041", "x"]),
        (["[", " ", "[", "1, ", '"x'], ["[", "", "[", "1", ',"x']),
        (["tr", "ue", " "], ["", "", "true"]),
        (["{", '"a"', ":", "[", "]", ",", '"b":', "{"], ["{", "", "", '"a":[', "]", "", "", ',"b":{']),
    ],
)
def test_what_cannot_change_any_more_is_written_at_once(pieces, told):
    reading = Reading()
    assert [reading.take(piece) for piece in pieces] == told


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ('{"a": {"b": [1, "x', '{"a":{"b":[1,"x"]}}'),
        ('{"a": 1, "b"', '{"a":1}'),
        ('{"a": 1, "b": tr', '{"a":1}'),
        ('{"a": "x\\', '{"a":"x"}'),
        ('{"a": "x\\u00', '{"a":"x"}'),
        ("[[1], [", "[[1],[]]"),
        ("", ""),
    ],
)
def test_wherever_the_text_stops_it_can_be_closed(text, closed):
    reading = Reading()
    reading.take(text)
    assert reading.closed() == closed
    assert reading.closed() == closed, "there is nothing left to close"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES, is_ascii=st.booleans(), indent=st.sampled_from([None, 2]))
def test_character_by_character_the_value_comes_and_is_valid_when_closed_at_each(value, is_ascii, indent):
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    reading = Reading()
    for at, character in enumerate(text, 1):
        reading.take(character, is_last=at == len(text))
        so_far = "".join(reading.written)
        closing = "".join(reversed(reading.writer._closing))
        if reading.writer.has_written and not so_far.endswith("\\"):
            json.loads(so_far + closing)
    assert reading.is_over
    assert json.loads("".join(reading.written)) == value


def test_nothing_was_written_until_something_is():
    writer = JsonWriter([].append)
    writer.text("")
    assert not writer.has_written
    writer.open("{", "}")
    writer.open("[", "]")
    assert writer.has_written
    assert repr(writer) == "JsonWriter(']}' to come)"


@pytest.mark.parametrize(
    ("text", "meant"),
    [(' "a\\nb" ', "a\nb"), ('"a\nb"', "a\nb"), (r'"\ud83d\ude00"', "😀"), (r'"\ud83d"', "?"), (r'"\x"', "\\x")],
)
def test_a_text_is_what_its_string_means(text, meant):
    assert whole(read_text, text)[0] == meant


def test_a_string_goes_up_to_its_quote():
    pieces = []
    assert whole(lambda source: read_string(source, pieces.append), r'a\"b"c"') == (None, 'c"')
    assert "".join(pieces) == r"a\"b"


@pytest.mark.parametrize("word", ["0", "-0", "10", "-1.25", "1e5", "1E-5", "1.5e+10", "true", "false", "null"])
def test_a_scalar_ends_where_it_cannot_go_on(word):
    for behind in ("", " ", ",", ":", "[", "]", "{", "}", '"'):
        assert whole(read_scalar, word + behind) == (word, behind)


def test_a_character_that_is_expected_is_read_with_the_space_before_it():
    assert whole(lambda source: expect(source, ":"), " \n\t\r: x") == (None, " x")
