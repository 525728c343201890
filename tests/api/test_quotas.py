"""What limits let through: by any minute, by the day, in requests and tokens; alone and shared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_api.quotas import Clocks, DayUse, Ledger, Quota, Use, judge

ONE, NOTHING = Use(1, 0), Use()


def clocks(now_s=1000.0, wall_s=0.0):
    return Clocks(now_s, wall_s)


def ledger(*uses):
    made = Ledger()
    for at_s, requests, tokens in uses:
        made.add(Use(requests, tokens), at_s=at_s, day=0)
    return made


def judged(quota, *ledgers, asked=ONE, today=NOTHING, at=None):
    return judge(quota, ledgers, today, asked, at or clocks())


def test_a_minute_is_any_sixty_seconds_and_a_refusal_says_when_the_next_one_may_go():
    full = ledger((990.5, 1, 0), (995.0, 2, 0))
    refused = judged(Quota(requests_per_minute=3), full)
    assert (refused.is_granted, refused.is_final) == (False, True)
    assert refused.words == "3 requests per minute"
    assert refused.retry_after_s == 51.0, "the second that began at 990 ends at 991, and a minute later counts no more"
    assert refused.requests == (3, 0, 56.0)
    assert judged(Quota(requests_per_minute=3), full, at=clocks(1051.0)).is_granted


def test_what_gateways_used_counts_together():
    assert not judged(Quota(requests_per_minute=2), ledger((999, 1, 0)), ledger((998, 1, 0))).is_granted
    granted = judged(Quota(requests_per_minute=3), ledger((999, 1, 0)), ledger((998, 1, 0)))
    assert (granted.is_granted, granted.requests.remaining) == (True, 0)


def test_a_day_ends_at_midnight():
    at = clocks(wall_s=86_400 * 5 - 100)
    refused = judged(Quota(requests_per_day=5), today=Use(5, 0), at=at)
    assert (refused.retry_after_s, refused.words) == (100.0, "5 requests per day")


def test_tokens_are_looked_at_before_and_may_come_back():
    refused = judged(Quota(tokens_per_minute=100), ledger((999, 1, 60)), asked=Use(1, 50))
    assert (refused.is_granted, refused.is_final) == (False, False)
    assert judged(Quota(tokens_per_minute=100), ledger((999, 1, 60), (999, 0, -40)), asked=Use(1, 50)).is_granted


def test_what_takes_more_tokens_than_there_can_be_may_go_once_there_are_all():
    assert judged(Quota(tokens_per_minute=100), asked=Use(1, 500)).is_granted
    assert not judged(Quota(tokens_per_minute=100), ledger((999, 1, 1)), asked=Use(1, 500)).is_granted


def test_the_limit_that_holds_longest_is_told():
    quota = Quota(requests_per_minute=1, tokens_per_day=10)
    refused = judged(quota, ledger((999, 1, 0)), today=Use(0, 10), at=clocks(wall_s=10.0))
    assert refused.words == "10 tokens per day"
    assert refused.tokens.remaining == 0


def test_tokens_of_another_day_do_not_come_back():
    made = ledger((999, 1, 50))
    made.add(Use(0, -50), at_s=999, day=1)
    assert made.today == DayUse(1, Use(0, 0))


def test_a_ledger_without_anything_to_remember_is_idle():
    made = ledger((999, 1, 50))
    assert not made.is_idle(1000.0, day=1)
    assert not made.is_idle(2000.0, day=0)
    assert made.is_idle(2000.0, day=1)


@pytest.mark.parametrize(("limit", "num", "part"), [(60, 4, 15), (3, 4, 1), (None, 4, None)])
def test_alone_a_gateway_takes_its_part(limit, num, part):
    assert Quota(requests_per_minute=limit).shared_by(num) == Quota(requests_per_minute=part)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3)), max_size=200), st.integers(1, 10))
def test_no_sixty_seconds_hold_more_than_the_limit(arrivals, limit):
    """Whatever the times of arrival, at whichever of four gateways."""
    now_s, ledgers, let_in = 1000.0, [Ledger() for _ in range(4)], []
    for gap_s, gateway in arrivals:
        now_s += gap_s
        if judge(Quota(requests_per_minute=limit), ledgers, Use(), Use(1, 0), Clocks(now_s, 0.0)).is_granted:
            ledgers[gateway].add(Use(1, 0), at_s=now_s, day=0)
            let_in.append(now_s)
    for number, time_s in enumerate(let_in):
        assert sum(1 for each in let_in[number:] if each < time_s + 60) <= limit
