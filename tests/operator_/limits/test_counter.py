"""What the operator counts for all gateways: over restarts of either, and over the day."""

import pytest

from dormouse_api.quotas import DayUse, Ledger, Quota, Use
from dormouse_operator.limits.counter import LimitCounter

ONE = Use(1, 0)
DAY_S = 86_400.0


class Clock:
    """A clock that is stepped."""

    def __init__(self, now_s):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock(1000.0)


@pytest.fixture
def wall():
    return Clock(DAY_S * 3)


@pytest.fixture
def counter(clock, wall):
    return LimitCounter(clock=clock, wall=wall, base={"team/old": DayUse(3, Use(10, 500))}.get)


def granted(counter, gateway, quota, key="team/a", asked=ONE):
    return counter.ask(gateway, key, quota, asked).is_granted


def test_all_gateways_share_a_limit(counter, clock):
    quota = Quota(requests_per_minute=4)
    assert [granted(counter, f"g{number % 3}", quota) for number in range(6)] == [True] * 4 + [False] * 2
    clock.now_s += 61
    assert granted(counter, "g0", quota)


def test_a_gateway_that_tells_all_again_is_counted_once(counter):
    quota = Quota(requests_per_minute=4)
    assert granted(counter, "g0", quota)
    assert granted(counter, "g1", quota)
    counter.restore("g0", "team/a", Ledger({999: Use(2, 0)}, DayUse(3, Use(2, 0))))
    assert granted(counter, "g1", quota)
    assert not granted(counter, "g1", quota)


def test_what_a_gateway_used_stays_counted_after_it_is_gone(counter):
    quota = Quota(requests_per_day=2)
    assert granted(counter, "g0", quota)
    assert granted(counter, "g0-started-anew", quota)
    assert not granted(counter, "g1", quota)


def test_a_new_operator_begins_with_the_recorded_day_and_counts_nothing_twice(counter):
    quota = Quota(requests_per_day=12)
    counter.restore("g0", "team/old", Ledger({}, DayUse(3, Use(4, 100))))
    counter.restore("g1", "team/old", Ledger({}, DayUse(3, Use(7, 100))))
    assert dict(counter.days())["team/old"] == DayUse(3, Use(11, 500)), "more than was recorded, as it is younger"
    assert granted(counter, "g0", quota, "team/old")
    assert not granted(counter, "g0", quota, "team/old")


def test_a_day_that_is_over_counts_no_more(counter, wall):
    quota = Quota(requests_per_day=10)
    assert not granted(counter, "g0", quota, "team/old")
    wall.now_s += DAY_S
    assert granted(counter, "g0", quota, "team/old")
    assert dict(counter.days())["team/old"] == DayUse(4, ONE)


def test_what_is_settled_goes_to_its_second(counter, clock):
    quota = Quota(tokens_per_minute=100)
    assert granted(counter, "g0", quota, asked=Use(1, 90))
    clock.now_s += 5
    assert not granted(counter, "g0", quota, asked=Use(1, 50))
    counter.add("g0", "team/a", Use(0, -80), age_s=5.0)
    assert granted(counter, "g0", quota, asked=Use(1, 50))


def test_what_needs_not_be_remembered_is_forgotten(counter, clock, wall):
    for number in range(5):
        assert granted(counter, "g0", Quota(requests_per_minute=1), f"team/{number}")
    clock.now_s += 1000
    wall.now_s += DAY_S
    assert granted(counter, "g1", Quota(requests_per_minute=1))
    assert repr(counter) == "LimitCounter(1 keys)"
