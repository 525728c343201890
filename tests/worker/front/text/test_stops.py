"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.front.text.stops import StopSearch

LETTERS = st.text(alphabet="ab", max_size=14)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=4)


def run(pieces, stops, *, include=False):
    """Return the text given out and the matched stop."""
    search, given_out = StopSearch(stops, include_in_output=include), ""
    for piece in pieces:
        given_out += search.feed(piece)
        if search.matched is not None:
            return given_out, search.matched
    return given_out + search.flush(), None


@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 14)), include=st.booleans())
def test_the_outcome_does_not_depend_on_how_the_text_was_cut(text, stops, cuts, include):
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    assert run(pieces, stops, include=include) == run(list(text), stops, include=include)


@given(text=LETTERS, stops=STOPS)
def test_without_a_match_everything_comes_out_and_with_one_nothing_of_it(text, stops):
    given_out, matched = run([text], stops)
    if matched is None:
        assert given_out == text
        assert not any(stop in text for stop in stops)
    else:
        assert text.startswith(given_out + matched)
        assert not any(stop in given_out for stop in stops)


@given(text=LETTERS, stops=STOPS)
def test_only_what_could_still_become_a_stop_is_held_back(text, stops):
    search = StopSearch(stops, include_in_output=False)
    given_out = search.feed(text)
    if search.matched is None:
        held = text[len(given_out) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_the_stop_that_is_complete_first_wins():
    assert run(["xabcd"], ["abcd", "bc"]) == ("xa", "bc")


def test_of_those_complete_at_once_the_longest_wins():
    assert run(["xabc"], ["c", "abc"]) == ("x", "abc")


def test_a_stop_over_three_pieces_is_found_and_can_be_included():
    assert run(["one <e", "n", "d> two"], ["<end>"]) == ("one ", "<end>")
    assert run(["one <e", "n", "d> two"], ["<end>"], include=True) == ("one <end>", "<end>")


@pytest.mark.parametrize("text", ["", "plain"])
def test_without_stops_nothing_is_held(text):
    assert StopSearch((), include_in_output=False).feed(text) == text


def test_what_is_passed_by_is_not_searched():
    search = StopSearch(["ab"], include_in_output=False)
    assert search.pass_by("a") == "a"
    assert (search.feed("b"), search.matched) == ("b", None)
