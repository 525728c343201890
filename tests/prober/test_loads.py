"""The plan of a load: decided beforehand, by the seed alone."""

from __future__ import annotations

import random
from itertools import islice, pairwise

import pytest

from tests.prober.loads import Load

CASES = range(5)


def plan(load, seed=1):
    return list(islice(load.asks(CASES, random.Random(seed)), 5000))


def test_the_same_seed_makes_the_same_plan_and_another_one_another():
    load = Load(rate=20, seconds=5)
    assert plan(load) == plan(load)
    assert plan(load) != plan(load, seed=2)


def test_a_fixed_rate_is_evenly_spaced():
    assert [ask.due_s for ask in plan(Load(rate=4, seconds=1, is_fixed=True))] == [0.0, 0.25, 0.5, 0.75]


def test_a_random_rate_is_the_rate_in_the_mean_and_bunches_as_independent_users_do():
    times = [ask.due_s for ask in plan(Load(rate=50))]
    gaps = [after - before for before, after in pairwise(times)]
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 50, rel=0.1)
    assert sum(gap < 1 / 50 for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.03)  # 1 - 1/e


def test_every_case_and_every_length_within_the_bounds_is_asked():
    asks = plan(Load(rate=100, tokens=(3, 6)))
    assert {ask.case for ask in asks} == set(CASES)
    assert {ask.max_tokens for ask in asks} == {3, 4, 5, 6}
    assert {ask.stream_interval for ask in asks} == {1, 4, 16}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rate": 0}, "rate is 0"),
        ({"rate": 1, "tokens": (0, 3)}, "tokens is"),
        ({"rate": 1, "tokens": (4, 3)}, "(4, 3)"),
    ],
)
def test_a_load_that_can_not_be_is_refused(fields, said):
    with pytest.raises(ValueError, match=r"must be above 0|the least is") as caught:
        Load(**fields)
    assert said in str(caught.value)
