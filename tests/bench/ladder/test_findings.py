"""What the cold start's rows are computed of."""

from __future__ import annotations

import msgspec
import pytest

from bench.ladder.findings import Answer, ColdStarts, Moment, Starts, coldstart_rows, to_cold_start, to_wake
from bench.ladder.findings import ColdStart as Start
from bench.ladder.journal import Entry


def entries(**moments):
    return [Entry(at_s, what, "d") for what, at_s in moments.items()]


def test_a_wake_counts_from_the_request_less_the_workers_own_time():
    wake = to_wake(1, Answer(10.0, first_s=10.5), entries(waking=10.125, woken=10.375, request=10.4))
    assert (wake.total_s, wake.own_s, wake.command_s, wake.beyond_s) == (0.5, 0.25, 0.125, 0.25)


@pytest.mark.parametrize(
    ("answer", "moments"),
    [
        (Answer(1.0, error="UNAVAILABLE: asleep"), {"waking": 1.0, "woken": 2.0}),
        (Answer(1.0, first_s=2.0), {"waking": 1.0}),
        (Answer(1.0, first_s=2.0), {}),
    ],
)
def test_a_request_that_woke_nobody_or_failed_is_no_figure(answer, moments):
    with pytest.raises(ValueError, match="a request to a model at level 2 ended with"):
        to_wake(2, answer, entries(**moments))


def test_a_cold_start_counts_from_ready_to_the_request_at_the_worker():
    start = to_cold_start(Answer(1.0, first_s=4.0), entries(ready=3.0, request=3.25))
    assert (start.forward_s, start.total_s) == (0.25, 3.0)


def test_a_start_without_its_request_is_no_figure():
    with pytest.raises(ValueError, match="a request to a model at zero ended with"):
        to_cold_start(Answer(1.0, first_s=4.0), entries(ready=3.0))


def make_found(beyond_s=0.09, forward_s=0.02):
    wakes = [to_wake(level, Answer(1.0, first_s=2.0), entries(waking=1.0, woken=2.0 - beyond_s)) for level in (1, 2)]
    zero = [Starts(count, (Start(forward_s, 2.0),) * 3) for count in (1, 5, 25)]
    return ColdStarts(tuple(wakes), tuple(zero), (Moment(0.0, "Active", 1, 0, 0),))


def test_every_line_of_the_table_has_its_goal():
    goals = [str(row.goal) for row in coldstart_rows(make_found()) if row.goal]
    assert goals == ["≤ 100", "≤ 250", "≤ 300", "≤ 50", "≤ 50", "≤ 1000"]


@pytest.mark.parametrize(
    ("beyond_s", "forward_s", "expected"),
    [
        (0.09, 0.02, [True] * 6),
        (0.2, 0.06, [False, True, True, False, False, True]),
        (0.4, 2.0, [False] * 6),
    ],
)
def test_goals_are_judged_in_milliseconds(beyond_s, forward_s, expected):
    rows = coldstart_rows(make_found(beyond_s, forward_s))
    assert [row.holds for row in rows if row.goal] == expected


def test_what_was_found_comes_out_of_the_sandbox_as_it_went_in():
    found = make_found()
    assert msgspec.json.decode(msgspec.json.encode(found), type=ColdStarts) == found
