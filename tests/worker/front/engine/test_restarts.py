"""How often and how soon a dead engine is started again."""

from __future__ import annotations

from dormouse_worker.engine.testing import ManualClock
from dormouse_worker.front.engine.restarts import MAX_DELAY_S, RestartBudget, RestartLimits


def test_the_first_comes_at_once_and_the_wait_doubles_from_then_on_until_the_limit_ends_it():
    budget = RestartBudget(RestartLimits(5, 600), ManualClock())
    assert [budget.take() for _ in range(6)] == [0, 1, 2, 4, 8, None]


def test_what_lies_longer_back_than_the_window_is_forgotten():
    clock = ManualClock()
    budget = RestartBudget(RestartLimits(2, 600), clock)
    assert budget.take() == 0
    clock.now_s = 599
    assert budget.take() == 1
    assert budget.take() is None
    clock.now_s = 600
    assert budget.take() == 1
    clock.now_s = 5000
    assert budget.take() == 0


def test_a_refusal_counts_nothing():
    clock = ManualClock()
    budget = RestartBudget(RestartLimits(1, 10), clock)
    budget.take()
    clock.now_s = 9
    assert budget.take() is None
    clock.now_s = 10
    assert budget.take() == 0


def test_a_generous_limit_has_a_longest_wait():
    budget = RestartBudget(RestartLimits(10**6, 1e9), ManualClock())
    assert max(budget.take() for _ in range(2000)) == MAX_DELAY_S


def test_zero_restarts_means_never():
    assert RestartBudget(RestartLimits(0, 600), ManualClock()).take() is None
