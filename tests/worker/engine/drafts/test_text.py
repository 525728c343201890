"""Texts in which the place behind a run of tokens is found, and who follows them."""

from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.engine.drafts.text import MAX_INDEXED_AT_ONCE, Follower, IndexedText, SelfFollower


def make(tokens, capacity=64):
    text = IndexedText(capacity)
    text.tokens.extend(tokens)
    text.catch_up()
    return text


def test_the_last_place_behind_the_longest_known_run_is_found():
    text = make([1, 2, 3, 4, 9, 7, 3, 4, 8, 5])
    assert text.find([1, 2, 3, 4]) == 4, "the run of four goes before that of two"
    assert text.find([0, 0, 3, 4]) == 8, "of the run of two the last place"
    assert text.find([4]) is None
    assert text.find([6, 6]) is None
    assert text.find([8, 5]) is None, "nothing follows the end"


def test_a_long_text_is_taken_in_over_several_calls():
    text = IndexedText(3 * MAX_INDEXED_AT_ONCE)
    text.tokens.extend(range(2 * MAX_INDEXED_AT_ONCE))
    last = [2 * MAX_INDEXED_AT_ONCE - 3, 2 * MAX_INDEXED_AT_ONCE - 2]
    text.catch_up()
    assert text.find([5, 6]) == 7
    assert text.find(last) is None
    text.catch_up()
    assert text.find(last) == 2 * MAX_INDEXED_AT_ONCE - 1


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 4))
def test_what_is_found_is_such_a_run_however_many_share_a_slot(tokens, capacity):
    text = make(tokens, capacity)
    for end in range(1, len(tokens)):
        tail = tokens[max(0, end - 4) : end]
        position = text.find(tail)
        if position is not None:
            assert 2 <= position < len(tokens)
            assert tokens[position - 2 : position] == tail[-2:]


def test_a_follower_goes_on_while_the_output_says_what_stands_there():
    follower, said = Follower(make([1, 2, 3, 4, 5, 1, 2, 9]), 0, 2), [8, 8]
    assert follower.propose(said, 2) == follower.propose(said, 2) == [1, 2]
    said += [1]
    said += [2]
    assert follower.propose(said, 9) == [3, 4, 5, 1, 2, 9], "it stays where it is, though 1 2 comes again"
    said += [3, 4, 1, 2]
    assert follower.propose(said, 9) == [9], "it was wrong, and looks for the last such run"
    assert Follower(make([1, 2, 3])).propose([7, 7], 2) == []


def test_who_was_not_asked_for_a_while_goes_on_where_he_would_be():
    one_by_one, at_once = (Follower(make(range(20)), 5, 1) for _ in range(2))
    sequence = [0]
    for token in (5, 6, 7, 8):
        sequence.append(token)
        one_by_one.propose(sequence, 1)
    assert at_once.propose(sequence, 3) == one_by_one.propose(sequence, 3) == [9, 10, 11]
    sequence += [9, 10, 0]
    assert at_once.propose(sequence, 3) == [], "it said something else meanwhile"


def test_who_has_followed_a_text_to_its_end_follows_it_no_further():
    assert Follower(make([1, 2, 3]), 1).propose([2, 3, 4], 9) == []
    assert Follower(make([1, 2, 3]), 1).propose([2, 3], 9) == []
    assert Follower(make([1, 2, 3]), 1).propose([2], 9) == [3]


@given(st.integers(2, 5), st.lists(st.integers(1, 12), max_size=12))
def test_a_period_is_followed_however_many_tokens_come_at_once(period, lengths):
    """Runs may reach into what has come with them."""
    text = make([place % period for place in range(2 * period)], 256)
    follower = SelfFollower(text)
    for length in (0, *lengths):
        first = len(text.tokens)
        text.tokens.extend(place % period for place in range(first, first + length))
        assert follower.propose(text.tokens, 7) == [(first + length + ahead) % period for ahead in range(7)]


def test_a_sequence_that_repeats_itself_is_proposed_to_go_on_so():
    text = make([5, 8, 6, 8, 6])
    assert SelfFollower(text).propose([5, 8, 6, 8, 6], 7) == [8, 6, 8, 6, 8, 6, 8]
