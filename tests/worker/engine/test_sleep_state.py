"""What sleeps, and how deep."""

import pytest

from dormouse_worker.engine.sleep_state import SleepState

BOTH = ("weights", "kv_cache")


def test_parts_fall_asleep_and_wake_apart_each_at_its_own_level():
    sleep_state = SleepState().deepen(1, ("kv_cache",))
    assert (sleep_state.level, sleep_state.tags) == (1, ("kv_cache",))
    sleep_state = sleep_state.deepen(2, ("weights",))
    assert (sleep_state.level, sleep_state.tags) == (2, BOTH)
    assert sleep_state.wake(("weights",)) == SleepState({"kv_cache": 1})
    assert sleep_state.wake(BOTH) == SleepState()
    assert SleepState().level == 0


def test_a_lighter_sleep_makes_no_part_lighter_and_no_other_one_deeper():
    assert SleepState({"weights": 2}).deepen(1, BOTH) == SleepState({"weights": 2, "kv_cache": 1})


@pytest.mark.parametrize(
    ("level", "tags", "covered"),
    [(1, BOTH, True), (2, BOTH, True), (2, ("weights",), True), (2, (), True)],
)
def test_what_sleeps_deeper_already_is_covered(level, tags, covered):
    assert SleepState({"weights": 2, "kv_cache": 2}).covers(level, tags) is covered


@pytest.mark.parametrize(
    ("levels", "level"), [({}, 1), ({"weights": 1, "kv_cache": 1}, 2), ({"weights": 2}, 2), ({"weights": 2}, 1)]
)
def test_what_is_awake_or_lighter_is_not_covered(levels, level):
    assert not SleepState(levels).covers(level, BOTH)


def test_a_part_that_sleeps_deeply_does_not_cover_one_that_sleeps_lightly():
    sleep_state = SleepState({"weights": 2, "kv_cache": 1})
    assert sleep_state.covers(1, BOTH)
    assert not sleep_state.covers(2, BOTH)
