"""The rows that follow from what was measured, and the picture."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree as ET

import pytest

from bench.fleet.figures import (
    Burst,
    Handover,
    Rest,
    burst_rows,
    change_rows,
    describe_writes,
    handover_rows,
    ready_rows,
    rest_rows,
    start_row,
)
from bench.fleet.picture import draw, steps

SVG = "{http://www.w3.org/2000/svg}"


def make_burst(count=1000, seconds=100.0, **fields):
    burst = Burst(
        [0.1] * count, [seconds / 2] * count, [seconds] * count, {"patch pods": 15 * count}, 5.0, 0.06 * count
    )
    return dataclasses.replace(burst, **fields)


def make_rest(**fields):
    return dataclasses.replace(Rest(5000, 60.0, 250 * 2**20, {}, 2, 1.2), **fields)


def verdicts(rows):
    return [row.holds for row in rows if row.goal]


def test_every_goal_of_a_burst_can_be_reached_and_missed():
    assert verdicts(burst_rows(make_burst())) == [True, True, True]
    bad = make_burst(seconds=120.1, writes={"patch pods": 15100}, cpu_s=60.1)
    assert verdicts(burst_rows(bad)) == [False, False, False]


def test_the_last_of_a_burst_counts_and_its_peer_is_of_as_many():
    burst = make_burst(ready_s=[1.0] * 999 + [129.0])
    assert (burst_rows(burst)[0].ours, burst_rows(burst)[0].ratio) == (129.0, 0.5)
    assert burst_rows(make_burst(count=50))[0].peer is None


def test_every_goal_of_rest_can_be_reached_and_missed():
    assert verdicts(rest_rows(make_rest())) == [True, True, True]
    bad = make_rest(resident_bytes=251 * 2**20, writes={"create events": 1}, cpu_s=1.3)
    assert verdicts(rest_rows(bad)) == [False, False, False]


def test_one_write_in_two_minutes_of_rest_is_half_a_write_a_minute():
    writes = next(row for row in rest_rows(make_rest(seconds=120.0, writes={"patch pods": 1})) if "writes" in row.unit)
    assert (writes.ours, writes.holds) == (0.5, False)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (change_rows(5000, [1.0]), change_rows(5000, [1.01])),
        (ready_rows(5000, [0.5], [9.0]), ready_rows(5000, [0.51], [9.0])),
        ([start_row(5000, 20.0)], [start_row(5000, 20.1)]),
    ],
)
def test_every_goal_of_one_object_among_many_can_be_reached_and_missed(good, bad):
    assert verdicts(good) == [True]
    assert verdicts(bad) == [False]


def test_the_worst_handover_counts_until_the_other_acts():
    good, late = Handover(1.0, 1.9), Handover(1.5, 2.1)
    rows = handover_rows([Handover(15.0, 17.0)], [good, late])
    assert verdicts(rows) == [True, False]
    assert [row.ours for row in rows] == [17.0, 15.0, 2.1, 1.5]


def test_writes_are_told_for_each_object_the_most_frequent_first():
    assert describe_writes({"create events": 2, "patch pods": 8}, 4) == "2.00 patch pods, 0.50 create events"
    assert describe_writes({}, 4) == "none"


def test_what_was_found_is_told_in_one_line_each():
    assert str(make_burst(count=2)).startswith("2 Ready after 100.0 s (applied 0.1 s")
    assert "250 MiB, 2.00 % of a core, 2.0 reads/min, writes none" in str(make_rest())
    assert str(Handover(1.0, 2.0)) == "lease taken after 1.00 s, acts after 2.00 s"


def test_the_picture_has_a_line_for_each_curve_and_every_line_ends_at_its_last_moment():
    picture = ET.fromstring(draw("a <title>", {"applied": [0.5, 0.1], "Ready": [2.0, 4.0]}))
    lines = picture.findall(f"{SVG}polyline")
    assert len(lines) == 2
    ends = [line.attrib["points"].split()[-1].split(",") for line in lines]
    assert float(ends[0][0]) < float(ends[1][0])  # earlier
    assert ends[0][1] == ends[1][1]  # as many
    assert "a <title>" in [text.text for text in picture.findall(f"{SVG}text")]


def test_a_curve_counts_what_has_passed():
    assert steps([2.0, 1.0]) == [(0.0, 0), (1.0, 1), (2.0, 2)]
