"""What sleeps, and what a command asks of it."""

import pytest

from dormouse_worker.engine.slumber import SleepOrder, Slumber, integer, tags_of
from dormouse_worker.errors import InvalidArgument
from dormouse_worker.ipc import Command

BOTH = ("weights", "kv_cache")


def test_parts_fall_asleep_and_wake_apart_each_at_its_own_level():
    slumber = Slumber().deepen(1, ("kv_cache",))
    assert (slumber.level, slumber.tags) == (1, ("kv_cache",))
    slumber = slumber.deepen(2, ("weights",))
    assert (slumber.level, slumber.tags) == (2, BOTH)
    assert slumber.wake(("weights",)) == Slumber({"kv_cache": 1})
    assert slumber.wake(BOTH) == Slumber()
    assert Slumber().level == 0


def test_a_lighter_sleep_makes_no_part_lighter_and_no_other_one_deeper():
    assert Slumber({"weights": 2}).deepen(1, BOTH) == Slumber({"weights": 2, "kv_cache": 1})


@pytest.mark.parametrize(
    ("level", "tags", "covered"),
    [(1, BOTH, True), (2, BOTH, True), (2, ("weights",), True), (2, (), True)],
)
def test_what_sleeps_deeper_already_is_covered(level, tags, covered):
    assert Slumber({"weights": 2, "kv_cache": 2}).covers(level, tags) is covered


@pytest.mark.parametrize(
    ("levels", "level"), [({}, 1), ({"weights": 1, "kv_cache": 1}, 2), ({"weights": 2}, 2), ({"weights": 2}, 1)]
)
def test_what_is_awake_or_lighter_is_not_covered(levels, level):
    assert not Slumber(levels).covers(level, BOTH)


def test_a_part_that_sleeps_deeply_does_not_cover_one_that_sleeps_lightly():
    slumber = Slumber({"weights": 2, "kv_cache": 1})
    assert slumber.covers(1, BOTH)
    assert not slumber.covers(2, BOTH)


def test_an_order_without_arguments_is_the_deepest_of_everything():
    assert SleepOrder.of(Command(1, "sleep")) == SleepOrder(2, BOTH)


def test_tags_come_in_the_order_in_which_they_wake():
    assert tags_of(Command(1, "wake_up", {"tags": ["kv_cache", "weights"]})) == BOTH


@pytest.mark.parametrize("tags", ["weights", ["graphs"], ["weights", "graphs"], 7])
def test_unknown_tags_are_refused_with_the_known_ones(tags):
    with pytest.raises(InvalidArgument, match=r"^tags is .*; allowed are weights and kv_cache$"):
        tags_of(Command(1, "wake_up", {"tags": tags}))


@pytest.mark.parametrize("level", [0, 3, -1])
def test_other_levels_are_refused_with_the_limits(level):
    with pytest.raises(InvalidArgument, match=rf"^level is {level}; allowed are 1 and 2$"):
        SleepOrder.of(Command(1, "sleep", {"level": level}))


@pytest.mark.parametrize("value", ["2", 2.0, True, None])
def test_an_integer_is_nothing_else(value):
    with pytest.raises(InvalidArgument, match=r"level is .*; sleep needs an integer"):
        integer(Command(1, "sleep", {"level": value}), "level", 2)
