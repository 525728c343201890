"""The text that is parsed: readers wait exactly as long as they must, and what was read can be given back."""

from __future__ import annotations

import pytest

from dormouse_worker.front.answers.source import Source, read_until

WAITS = "waits"


def source(text, *, is_ended=False):
    made = Source()
    made.append(text)
    made.is_ended = is_ended
    return made


def outcome(reader):
    """Return what a reader returns, or that it waits for more text."""
    try:
        next(reader)
    except StopIteration as stop:
        return stop.value
    return WAITS


@pytest.mark.parametrize(
    ("text", "found"), [("<a>", True), ("<a>b", True), ("<a", WAITS), ("", WAITS), ("<b", False), ("x", False)]
)
def test_a_marker_is_known_as_soon_as_it_can_be(text, found):
    assert outcome(source(text).starts_with("<a>")) is found


def test_what_has_ended_is_waited_for_no_more():
    ended = source("<a", is_ended=True)
    assert outcome(ended.starts_with("<a>")) is False
    assert outcome(ended.peek()) == "<"
    assert outcome(read_until(ended, ["<a>"])) == ("<a", "")
    assert [outcome(ended.peek()), outcome(ended.skip_space())] == ["", ""]
    assert ended.is_cut


def test_only_what_may_belong_to_a_marker_is_held():
    assert source("a <t").num_safe(["<tool>", "</tool>"]) == 2
    assert source("a </").num_safe(["<tool>", "</tool>"]) == 2
    assert source("a <x").num_safe(["<tool>"]) == 4
    assert source("<tool").num_safe([]) == 5
    assert not source("a").is_cut


def test_the_first_marker_counts_and_of_those_at_one_place_the_longest():
    assert source("ab<<c").find(["<<", "<", "c"]) == (2, "<<")
    assert source("ab").find(["<"]) is None


def test_what_was_read_since_a_mark_is_given_back_once_also_when_more_text_came():
    read = source("x" * 100)
    read.take(90)
    read.mark()
    read.append("abc")
    assert read.take(13) == "x" * 10 + "abc"
    assert (read.give_back(), read.give_back()) == ("x" * 10 + "abc", "")


def test_what_is_read_is_dropped_but_for_what_expressions_look_behind_at():
    read = source("x" * 1000)
    read.take(1000)
    read.append("abc")
    assert (read.end - read.at, read.at, read.unread) == (3, 64, "abc")


def test_it_says_how_much_is_unread():
    assert repr(source("abc")) == "Source(3 unread)"
    read = source("abc", is_ended=True)
    read.take(1)
    assert repr(read) == "Source(2 unread, ended)"
