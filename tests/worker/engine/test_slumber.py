"""What sleeps, and what a command asks of it."""

import pytest

from dormouse_worker.engine.slumber import SleepOrder, Slumber, integer, tags_of
from dormouse_worker.errors import InvalidArgument
from dormouse_worker.ipc import Command

BOTH = ("weights", "kv_cache")


def test_parts_fall_asleep_and_wake_apart():
    slumber = Slumber().deepen(1, ("kv_cache",))
    assert slumber == Slumber(1, ("kv_cache",))
    slumber = slumber.deepen(2, ("weights",))
    assert slumber == Slumber(2, BOTH)
    assert slumber.wake(("weights",)) == Slumber(2, ("kv_cache",))
    assert slumber.wake(BOTH) == Slumber()


def test_a_lighter_sleep_does_not_make_a_deep_one_lighter():
    assert Slumber(2, ("weights",)).deepen(1, ("kv_cache",)) == Slumber(2, BOTH)


@pytest.mark.parametrize(
    ("level", "tags", "covered"),
    [(1, BOTH, True), (2, BOTH, True), (2, ("weights",), True), (2, (), True)],
)
def test_what_sleeps_deeper_already_is_covered(level, tags, covered):
    assert Slumber(2, BOTH).covers(level, tags) is covered


@pytest.mark.parametrize(("slumber", "level"), [(Slumber(), 1), (Slumber(1, BOTH), 2), (Slumber(2, ("weights",)), 2)])
def test_what_is_awake_or_lighter_is_not_covered(slumber, level):
    assert not slumber.covers(level, BOTH)


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
