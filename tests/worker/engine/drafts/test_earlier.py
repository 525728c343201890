"""Earlier answers: each caller's apart, bounded, and what is forgotten first."""

from dormouse_worker.engine.drafts.earlier import (
    MAX_ANSWER_TOKENS,
    MAX_PLACES,
    MAX_TEXT_TOKENS,
    EarlierAnswers,
    Place,
    Recall,
)


def recall(place):
    made = Recall(place)
    for _ in range(MAX_TEXT_TOKENS // 2048 + 1):  # a text is taken in over several calls
        assert not made.propose([], 1)
    return made


def test_where_an_answer_said_the_same_it_is_followed_until_this_one_says_something_else():
    place = Place()
    place.add([1, 2, 3, 4, 5, 6, 7, 8, 9])
    follower, said = recall(place), [0, 1, 2, 3, 4]
    assert follower.propose(said, 3) == [5, 6, 7]
    said += [5]
    assert follower.propose(said, 9) == [6, 7, 8, 9]
    said += [0]
    assert follower.propose(said, 9) == []
    said += [5, 6, 7, 8]
    assert follower.propose(said, 9) == [9], "it finds the way back"


def test_the_longest_run_and_of_equal_ones_the_last_answer_is_followed():
    place = Place()
    place.add([1, 2, 3, 4, 5, 6, 7, 8, 10])
    place.add([0, 0, 0, 0, 5, 6, 7, 8, 20])
    place.add([0])
    follower = recall(place)
    assert follower.propose([1, 2, 3, 4, 5, 6, 7, 8], 1) == [10]
    assert recall(place).propose([9, 9, 9, 9, 5, 6, 7, 8], 1) == [20]
    assert recall(place).propose([9, 6, 7, 8], 1) == []


def test_the_oldest_answers_are_forgotten_first_and_of_a_long_one_its_end():
    place = Place()
    for first in range(0, 5 * MAX_ANSWER_TOKENS, MAX_ANSWER_TOKENS):
        place.add(range(first, first + 2 * MAX_ANSWER_TOKENS))
        assert max(len(text.tokens) for text in place.texts) <= MAX_TEXT_TOKENS
    recall(place)

    def knows(first):
        """A slot of the index may be another run's; not all of these are."""
        return any(Recall(place).propose(range(start, start + 4), 1) for start in range(first, first + 16))

    assert [knows(number * MAX_ANSWER_TOKENS) for number in range(6)] == [False, False, True, True, True, False]


def test_an_old_answer_is_followed_too_and_a_follower_keeps_its_text():
    place = Place()
    place.add([1, 2, 3, 4, 5, 6])
    place.add(range(100, 100 + MAX_ANSWER_TOKENS))
    place.add(range(5000, 5000 + MAX_ANSWER_TOKENS))
    follower = recall(place)
    assert follower.propose([1, 2, 3, 4], 9)[:2] == [5, 6]
    for first in (10_000, 20_000, 30_000):
        place.add(range(first, first + MAX_ANSWER_TOKENS))
    assert follower.propose([1, 2, 3, 4, 5], 1) == [6]
    assert recall(place).propose([1, 2, 3, 4], 1) == []


def test_places_are_apart_and_that_asked_for_longest_ago_goes_first():
    earlier = EarlierAnswers()
    names = [(f"salt {number}", "") for number in range(MAX_PLACES)]
    for name in names:
        earlier.of(name).add([1, 2, 3, 4, 5])
    assert earlier.of(names[0]) is earlier.of(names[0])
    assert not recall(earlier.of(("another", ""))).propose([1, 2, 3, 4], 1)
    assert repr(earlier) == f"EarlierAnswers({MAX_PLACES} places)"
    assert recall(earlier.of(names[0])).propose([1, 2, 3, 4], 1) == [5], "it was asked for again"
    assert not recall(earlier.of(names[1])).propose([1, 2, 3, 4], 1)
    earlier.clear()
    assert not recall(earlier.of(names[0])).propose([1, 2, 3, 4], 1)
    assert "IndexedText" in f"{Place()!r} {Recall(Place())!r}"
