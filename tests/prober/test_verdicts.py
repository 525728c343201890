"""What is right, and each way in which an answer can be wrong."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.prober.verdicts import Finding, Piece, Verdict, compare, judge

REFERENCE = [5, 6, 7, 7, 8, 9]
tokens = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def pieces(*groups, last=True):
    made, count = [], 0
    for group in groups:
        count += len(group)
        made.append(Piece(tuple(group), count))
    made[-1] = Piece(made[-1].tokens, count, is_last=last)
    return made


@pytest.mark.parametrize(
    ("answer", "finding"),
    [
        ([5, 6, 7, 7, 8, 9], Finding(Verdict.OK)),
        ([5, 6, 7, 8, 9], Finding(Verdict.LOST_TOKENS, lost=1)),
        ([7, 7, 8, 9], Finding(Verdict.LOST_TOKENS, lost=2)),
        ([5, 6, 7, 7], Finding(Verdict.LOST_TOKENS, lost=2)),
        ([], Finding(Verdict.LOST_TOKENS, lost=6)),
        ([5, 6, 6, 7, 7, 8, 9], Finding(Verdict.REPEATED_TOKENS, repeated=1)),
        ([5, 6, 7, 7, 5, 6, 7, 7, 8, 9], Finding(Verdict.REPEATED_TOKENS, repeated=4)),
        ([5, 6, 7, 7, 8, 9, 9], Finding(Verdict.REPEATED_TOKENS, repeated=1)),
        ([5, 6, 7, 1, 8, 9], Finding(Verdict.WRONG_TOKENS)),
        ([5, 6, 7, 7, 8, 9, 1], Finding(Verdict.WRONG_TOKENS)),
        ([6, 5, 7, 7, 8, 9], Finding(Verdict.WRONG_TOKENS)),
        ([5, 1, 7, 8, 9], Finding(Verdict.WRONG_TOKENS)),
    ],
)
def test_each_fault_is_called_by_its_name(answer, finding):
    assert compare(REFERENCE, answer) == finding


@given(tokens, tokens)
def test_only_the_reference_itself_is_right(expected, answer):
    assert compare(expected, answer).is_ok == (expected == answer)


@given(tokens, st.data())
def test_tokens_that_are_left_out_are_counted(expected, data):
    begin = data.draw(st.integers(0, len(expected) - 1))
    end = data.draw(st.integers(begin + 1, len(expected)))
    assert compare(expected, expected[:begin] + expected[end:]) == Finding(Verdict.LOST_TOKENS, lost=end - begin)


@given(tokens, st.data())
def test_tokens_that_come_twice_are_counted(expected, data):
    begin = data.draw(st.integers(0, len(expected) - 1))
    end = data.draw(st.integers(begin + 1, len(expected)))
    found = compare(expected, expected[:end] + expected[begin:])
    assert found == Finding(Verdict.REPEATED_TOKENS, repeated=end - begin)


@given(tokens, st.data())
def test_one_other_token_is_a_wrong_one(expected, data):
    index = data.draw(st.integers(0, len(expected) - 1))
    other = data.draw(st.integers(0, 9))
    assume(other != expected[index])
    assert compare(expected, [*expected[:index], other, *expected[index + 1 :]]).verdict is Verdict.WRONG_TOKENS


def test_an_error_is_a_lost_request_whatever_came_before_it():
    assert judge(REFERENCE, pieces(REFERENCE), "UNAVAILABLE").verdict is Verdict.LOST


def test_an_answer_in_pieces_is_right():
    assert judge(REFERENCE, pieces([5], [], [6, 7, 7], [8, 9]), "OK").is_ok


def test_an_answer_without_a_last_message_has_not_ended():
    assert judge(REFERENCE, pieces(REFERENCE, last=False), "OK").verdict is Verdict.UNENDED


def test_something_after_the_last_message_is_a_second_end():
    twice = [*pieces(REFERENCE), Piece((), len(REFERENCE), is_last=True)]
    assert judge(REFERENCE, twice, "OK").verdict is Verdict.TWO_ENDS


def test_a_running_count_that_starts_anew_is_noticed():
    answer = [Piece((5, 6, 7), 3), Piece((7, 8, 9), 3, is_last=True)]
    assert judge(REFERENCE, answer, "OK").verdict is Verdict.WRONG_COUNT
