"""When a worker that failed gets requests again. Pure: a clock of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_gateway.routing.breaker import RULES, Breaker, State, Verdict

GOOD, FAILED, REFUSED, NOTHING = Verdict.GOOD, Verdict.FAILED, Verdict.REFUSED, Verdict.NOTHING
CLOSED, HALF_OPEN, OPEN = State.CLOSED, State.HALF_OPEN, State.OPEN


def after(*verdicts, breaker=None, now_s=0.0):
    breaker = breaker or Breaker()
    for verdict in verdicts:
        breaker = breaker.after(verdict, now_s, is_probe=False)
    return breaker


def state(breaker, now_s, *, is_heard=True):
    return breaker.state(now_s, is_heard=is_heard)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], CLOSED),
        ([FAILED, FAILED], CLOSED),
        ([FAILED, FAILED, FAILED], OPEN),
        ([FAILED, FAILED, GOOD, FAILED, FAILED], CLOSED),
        ([FAILED, FAILED, NOTHING, FAILED], OPEN),
        ([REFUSED], OPEN),
        ([NOTHING] * 100, CLOSED),
        ([FAILED, GOOD] * 4, CLOSED),
        ([FAILED, GOOD] * 5, CLOSED),
        ([FAILED, GOOD] * 4 + [FAILED, FAILED], OPEN),
        ([GOOD] * 1000 + [FAILED, FAILED, GOOD] * 3, CLOSED),
        ([GOOD] * 1000 + [FAILED, FAILED, GOOD] * 6, OPEN),
    ],
    ids=[
        "new",
        "two failures",
        "three in a row",
        "a good one between",
        "the request's own fault between",
        "one refusal",
        "only the requests' faults",
        "half of too few",
        "the share is looked at when one fails",
        "half of enough",
        "less than half",
        "more than half of the last ones, however many were good before",
    ],
)
def test_it_opens_after_failures_in_a_row_a_share_of_failures_or_a_refusal(verdicts, expected):
    assert state(after(*verdicts), 0.0) is expected


@pytest.mark.parametrize(
    ("num_openings", "is_heard", "pause_s"),
    [(1, True, 0.5), (2, True, 1.0), (5, True, 8.0), (6, True, 10.0), (10_000, True, 10.0), (1, False, 10.0)],
)
def test_the_pause_doubles_up_to_a_limit_and_is_long_for_a_worker_that_is_not_heard(num_openings, is_heard, pause_s):
    breaker = Breaker(num_openings=num_openings, opened_s=100.0)
    assert breaker.left_s(100.0, is_heard=is_heard) == pause_s
    assert state(breaker, 100.0 + pause_s - 0.01, is_heard=is_heard) is OPEN
    assert state(breaker, 100.0 + pause_s, is_heard=is_heard) is HALF_OPEN
    assert breaker.left_s(200.0, is_heard=is_heard) == 0.0


def test_after_the_pause_one_request_is_let_in_and_its_end_decides():
    breaker = after(REFUSED)
    assert not breaker.admits(0.4, is_heard=True)
    assert breaker.admits(0.5, is_heard=True)
    probed = breaker.probed()
    assert not probed.admits(0.5, is_heard=True), "one at a time"
    assert state(probed.after(GOOD, 0.6, is_probe=True), 0.6) is CLOSED
    again = probed.after(REFUSED, 0.6, is_probe=True)
    assert (state(again, 0.6), again.left_s(0.6, is_heard=True)) == (OPEN, 1.0)
    assert probed.after(NOTHING, 0.6, is_probe=True).admits(0.6, is_heard=True), "the next may show it"


def test_a_probe_that_begins_to_answer_closes_it_until_the_next_failure():
    trusted = after(REFUSED).probed().trusted()
    assert state(trusted, 1.0) is CLOSED
    failed = after(FAILED, breaker=trusted, now_s=1.0)
    assert (state(failed, 1.0), failed.left_s(1.0, is_heard=True)) == (OPEN, 1.0)
    good = after(GOOD, FAILED, breaker=trusted, now_s=1.0)
    assert state(good, 1.0) is CLOSED
    assert after(FAILED, FAILED, breaker=good, now_s=1.0).left_s(1.0, is_heard=True) == 0.5, "it begins anew"


def test_calls_that_began_before_it_opened_change_nothing():
    breaker = after(REFUSED)
    assert after(GOOD, FAILED, REFUSED, breaker=breaker, now_s=0.2) is breaker
    probed = breaker.probed()
    assert after(GOOD, FAILED, REFUSED, breaker=probed, now_s=0.6) is probed


def test_a_closed_breaker_is_never_probed():
    with pytest.raises(AssertionError, match="half open"):
        Breaker().probed()


@given(st.lists(st.tuples(st.sampled_from(list(Verdict)), st.floats(0.0, 20.0), st.booleans()), max_size=80))
def test_whatever_happens_a_worker_that_answers_well_is_let_in_again(steps):
    breaker, now_s, num_failures = Breaker(), 0.0, 0
    for verdict, delay_s, is_heard in steps:
        now_s += delay_s
        if not breaker.admits(now_s, is_heard=is_heard):
            assert num_failures, "it opens only after failures"
            continue
        is_probe = breaker.opened_s is not None
        breaker = breaker.probed() if is_probe else breaker
        breaker = breaker.after(verdict, now_s, is_probe=is_probe)
        num_failures += verdict in {FAILED, REFUSED}
        assert breaker.window.bit_count() <= breaker.num_calls <= RULES.window
    now_s += RULES.silent_pause_s
    assert breaker.admits(now_s, is_heard=False), "no pause is longer"
    probed = breaker.probed() if breaker.opened_s is not None else breaker
    assert state(probed.after(GOOD, now_s, is_probe=True), now_s) is CLOSED
