"""When a canary is to have no more requests, by what happened to those that it and the standing deployment had."""

import grpc
import pytest

from dormouse_gateway.canary.trial import ERRORS, LAST, LEAST_FIRSTS, Trial
from dormouse_gateway.model import Canary

OK, INTERNAL, CANCELLED = grpc.StatusCode.OK, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED
LIMITS = Canary(of="tiny")


def seen(side, *, ok=0, failed=0, first_s=None):
    for code in [OK] * ok + [INTERNAL] * failed:
        side.note(code, first_s)


@pytest.fixture
def trial():
    return Trial()


def test_two_failures_may_be_chance_and_three_are_not(trial):
    seen(trial.canary, failed=2)
    assert trial.fault(LIMITS) == ""
    seen(trial.canary, failed=1)
    assert "3 of its last 3 requests failed, and 0 of 0 of tiny; maxErrorPercent is 5" in trial.fault(LIMITS)


def test_what_fails_at_the_standing_one_too_is_not_the_canary_s_fault(trial):
    seen(trial.standing, ok=50, failed=50)
    seen(trial.canary, ok=46, failed=54)
    assert trial.fault(LIMITS) == ""
    seen(trial.canary, failed=5)
    assert "59 of its last 105 requests failed, and 50 of 100 of tiny" in trial.fault(LIMITS)


def test_more_errors_are_let_through_where_the_spec_says_so(trial):
    seen(trial.canary, ok=6, failed=4)
    assert trial.fault(Canary(of="tiny", max_error_percent=40)) == ""
    assert trial.fault(Canary(of="tiny", max_error_percent=39))


@pytest.mark.parametrize("code", [CANCELLED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED])
def test_what_callers_do_says_nothing(trial, code):
    for _ in range(50):
        trial.canary.note(code, None)
    assert not trial.canary.errors
    assert code not in ERRORS


def test_only_the_last_requests_count(trial):
    seen(trial.canary, failed=2)
    seen(trial.canary, ok=LAST)
    assert trial.canary.num_errors == 0
    assert len(trial.canary.errors) == LAST


def test_slow_first_tokens_end_it_once_there_are_enough_of_both(trial):
    seen(trial.standing, ok=LEAST_FIRSTS, first_s=0.1)
    seen(trial.canary, ok=LEAST_FIRSTS - 1, first_s=0.4)
    assert trial.fault(LIMITS) == ""
    seen(trial.canary, ok=1, first_s=0.4)
    words = trial.fault(LIMITS)
    assert words == "its first tokens take 0.400 s at the median, those of tiny 0.100 s; maxTtftPercent is 300"


@pytest.mark.parametrize(("ours_s", "limits"), [(0.3, LIMITS), (9.0, Canary(of="tiny", max_ttft_percent=0))])
def test_as_slow_as_the_spec_allows_it_goes_on(trial, ours_s, limits):
    seen(trial.standing, ok=LEAST_FIRSTS, first_s=0.1)
    seen(trial.canary, ok=LEAST_FIRSTS, first_s=ours_s)
    assert trial.fault(limits) == ""


def test_a_few_milliseconds_disturb_nobody(trial):
    seen(trial.standing, ok=LEAST_FIRSTS, first_s=0.001)
    seen(trial.canary, ok=LEAST_FIRSTS, first_s=0.04)
    assert trial.fault(LIMITS) == ""
