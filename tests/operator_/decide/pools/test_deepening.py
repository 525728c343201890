"""What a sleeper is worth, and whose residue goes first."""

from __future__ import annotations

import pytest

from dormouse_operator.decide.pools.deepening import deepenings, value
from dormouse_operator.model.pools import TenantState
from tests.operator_.decide.pools.nouns import A, B, C, demand, demands, tenant


@pytest.mark.parametrize(("quiet_s", "worth"), [(0.0, 6.0), (1.0, 6.0), (1.5, 4.0), (60.0, 0.1)])
def test_a_sleeper_is_worth_its_wake_over_its_quiet_time_of_a_second_at_least(quiet_s, worth):
    assert value(demand("a", wake_s=6.0, quiet_s=quiet_s), A) == pytest.approx(worth)


def test_a_sleeper_that_nobody_knows_or_that_has_no_place_is_worth_nothing():
    assert value(None, A) == 0.0
    assert value(demand("b"), A) == 0.0


def test_of_sleepers_that_are_worth_the_same_the_first_by_name_goes():
    asleep = [tenant(found, TenantState.ASLEEP, residual_bytes=5) for found in (C, B, A)]
    assert deepenings(asleep, {}, to_free_bytes=6) == (A, B)
    asked = demands(demand("a", quiet_s=9), demand("b", quiet_s=8))
    assert deepenings(asleep, asked, to_free_bytes=10) == (C, A)
    assert deepenings(asleep, asked, to_free_bytes=0) == ()
    assert deepenings(asleep, asked, to_free_bytes=99) == (C, A, B), "and all, if that is not enough"
