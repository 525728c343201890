"""Where regions of an answer begin and end: at the first delimiter, the longest of one place, as soon as it is sure."""

from __future__ import annotations

from typing import Any

import pytest

from dormouse_worker.front.answers.own_family import ALL
from dormouse_worker.front.answers.parser import AnswerParser, Grammar
from dormouse_worker.front.answers.response_reader import MAX_HELD_CHARS
from dormouse_worker.front.answers.response_template import read_response_template
from tests.worker.front.answers.corpus import Said, collected


def reading(**fields: Any) -> AnswerParser:
    """Return who reads answers in these regions."""
    own = read_response_template({"start_anchor": "A", "fields": fields})
    return AnswerParser(Grammar(response=own, told=ALL), {})


@pytest.mark.parametrize(
    ("fields", "text", "says"),
    [
        ({"thinking": {"open": ["<a", "<a>"]}, "content": {}}, "Hi<a>Hm", Said("Hi", "Hm")),
        ({"thinking": {"open": "<"}, "content": {"open": "<<"}}, "<<Hi", Said("Hi")),
        ({"content": {"open": "<"}, "thinking": {"open": "<<"}}, "<<Hm", Said("", "Hm")),
        ({"thinking": {"open": "<", "close": "|"}, "content": {"open": "<"}}, "<Hm|<Ho", Said("", "HmHo")),
        ({"thinking": {"open": "|"}, "content": {"close": "|"}}, "Hi|Hm", Said("Hi", "Hm")),
        ({"thinking": {"open_pattern": "<.>"}, "content": {}}, "Hi<\n>Hm", Said("Hi", "Hm")),
        (
            {"thinking": {"open": "<", "close": ">", "repeats": True, "join": "+"}, "content": {}},
            "<a>Hi<b>",
            Said("Hi", "a+b"),
        ),
        (
            {"content": {"open": "<", "close": ">", "repeats": True, "join": "+"}, "thinking": {"open": "["}},
            "<a><b>[Hm",
            Said("a+b", "Hm"),
        ),
    ],
)
def test_the_first_delimiter_wins_and_at_one_place_the_longest(fields: dict[str, Any], text: str, says: Said):
    whole, cut = reading(**fields), reading(**fields)
    assert collected([*whole.feed(text), *whole.finish()]) == says
    assert collected([*(event for character in text for event in cut.feed(character)), *cut.finish()]) == says


@pytest.mark.parametrize(
    ("fields", "text", "told"),
    [
        ({"thinking": {"open": ["<a", "<a>"]}, "content": {}}, "<a>Hm", Said("", "Hm")),
        ({"thinking": {"open_pattern": "<a>"}, "content": {}}, "<a>Hm", Said("", "Hm")),
        ({"thinking": {"open": ["<a", "<ab"]}, "content": {"open": "x"}}, "xHi<a", Said("Hi<a")),
        ({"thinking": {"open": ["<a", "<ab"]}, "content": {}}, "Hi<a", Said("Hi")),
        ({"thinking": {"open": "<a"}, "content": {}}, "Hi <", Said("Hi")),
    ],
)
def test_what_is_sure_is_told_at_once(fields: dict[str, Any], text: str, told: Said):
    assert collected(reading(**fields).feed(text)) == told


def test_what_may_become_a_delimiter_is_held_so_long_and_no_longer():
    fields = {"thinking": {"open_pattern": "<[^>]*>"}, "content": {}}
    parser, text = reading(**fields), "<" + "a" * (MAX_HELD_CHARS - 1)
    assert parser.feed(text) == []
    assert collected(parser.feed("a")) == Said(text + "a")
    assert collected([*parser.feed(">Hi"), *parser.finish()]) == Said(">Hi"), "nothing is a delimiter any more"
    other = reading(**fields)
    assert collected([*other.feed(text), *other.feed(">Hm"), *other.finish()]) == Said("", "Hm")
