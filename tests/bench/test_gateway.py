"""What the gateway's rows are computed of."""

from __future__ import annotations

import os

import pytest

from bench.gateway import two_cores
from bench.gateway_figures import (
    Flow,
    Held,
    Latencies,
    count_overtaken,
    held_rows,
    overhead_rows,
    streaming_rows,
)

MIB = 2**20


def make_held(**changes):
    fields = {"num_asked": 4, "num_answered": 4, "num_overtaken": 0, "num_wakes": 1, "peak_bytes": MIB, "hold_s": [1.0]}
    return Held(**{**fields, **changes})


def verdicts(rows):
    return [row.holds for row in rows if row.goal]


def test_the_overhead_is_by_how_much_each_percentile_is_higher():
    direct, through = [float(ms) for ms in range(1, 101)], [ms + 0.5 for ms in range(1, 101)]
    through[-10:] = [ms + 5 for ms in through[-10:]]
    p50, p95, *times = overhead_rows(Latencies(200.0, direct, through))
    assert (p50.ours, p95.ours) == (0.5, 5.5)
    assert [p50.holds, p95.holds] == [True, False]
    assert [(row.ours, row.peer) for row in times] == [(51.0, 50.5), (100.5, 95.05)]


def test_streaming_is_judged_by_the_paced_cost_and_the_ratio_of_messages():
    paced = [Flow(1000, 1000, 1.0, cpu_s) for cpu_s in (0.08, 0.09, 0.5)]
    direct, through = [Flow(9000, 18000, 1.0)], [Flow(4000, 12000, 1.0, 0.2)]
    cost, ratio, _, tokens = streaming_rows(64, paced, direct, through)
    assert (cost.ours, cost.holds) == (90.0, True)
    assert (ratio.ours, ratio.peer, ratio.holds) == (4000.0, 9000.0, False)
    assert (tokens.ours, tokens.peer) == (3.0, 2.0)


def test_a_wake_that_answers_all_in_order_holds():
    assert verdicts(held_rows([make_held(), make_held()])) == [True, True, True, True]


@pytest.mark.parametrize(
    ("flaw", "place"),
    [({"num_answered": 3}, 0), ({"num_overtaken": 1}, 1), ({"num_wakes": 2}, 2)],
)
def test_one_bad_wake_among_good_ones_counts(flaw, place):
    assert verdicts(held_rows([make_held(), make_held(**flaw), make_held()]))[place] is False


def test_memory_is_that_of_the_first_wake_and_what_later_ones_add_is_told():
    wakes = [make_held(peak_bytes=size * MIB) for size in (65, 66, 70)]
    memory, more = held_rows(wakes)[3:5]
    assert (memory.ours, memory.holds) == (65.0, False)
    assert more.ours == 5.0


@pytest.mark.parametrize(("taken", "count"), [("abcd", 0), ("bacd", 1), ("dabc", 3), ("abd", 0), ("acbd", 1)])
def test_whoever_reaches_the_worker_after_one_that_came_later_was_overtaken(taken, count):
    assert count_overtaken(seconds("abcd"), seconds(taken), 0.5) == count


@pytest.mark.parametrize(("slack_s", "count"), [(0.9, 1), (1.1, 0)])
def test_two_that_pass_each_other_on_the_way_were_not_overtaken(slack_s, count):
    assert count_overtaken(seconds("abcd"), seconds("bacd"), slack_s) == count


def seconds(names):
    """Return one moment after the other."""
    return {name: float(number) for number, name in enumerate(names)}


def test_two_cores_are_taken_and_given_back():
    before = os.sched_getaffinity(0)
    with two_cores():
        assert len(os.sched_getaffinity(0)) == min(2, len(before))
    assert os.sched_getaffinity(0) == before
