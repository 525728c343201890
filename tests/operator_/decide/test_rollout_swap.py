"""The planner of swaps, called in a loop to the end; and the steps of one pod."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.decide.rollout.limits import Limits
from dormouse_operator.decide.rollout.swap import SwapCounts, swaps_to_start

numbers = st.integers(0, 8)


@given(numbers, st.integers(1, 8), numbers)
def test_every_replica_is_swapped_and_never_too_many_are_away(old, max_unavailable, new):
    """`old` and `new` serve at first; a swap takes three rounds."""
    limits, wanted, under_way = Limits(0, max_unavailable), old + new, []
    for _ in range(100):
        begun = swaps_to_start(SwapCounts(wanted=wanted, ready=old + new, candidates=old), limits)
        old -= begun
        under_way += [3] * begun
        assert old >= 0
        assert old + new >= wanted - max_unavailable
        under_way = [rounds - 1 for rounds in under_way]
        new += under_way.count(0)
        under_way = [rounds for rounds in under_way if rounds]
    assert (old, under_way, new) == (0, [], wanted)


@given(numbers, numbers, numbers)
def test_nobody_is_taken_away_while_as_many_are_missing_as_may_be(wanted, ready, candidates):
    counts = SwapCounts(wanted=wanted, ready=min(ready, wanted), candidates=min(candidates, ready))
    count = swaps_to_start(counts, Limits(0, 1))
    assert count == (1 if counts.candidates and counts.ready == counts.wanted else 0)


def test_a_stopped_roll_out_starts_no_swap():
    assert swaps_to_start(SwapCounts(wanted=3, ready=3, candidates=3), Limits(0, 0)) == 0
