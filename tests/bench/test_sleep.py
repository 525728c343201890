"""The rows that follow from what the measuring programs of sleep answered, and the picture of the phases."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import msgspec
import pytest

from bench.sleep_figures import Cycle, Held, Load, cycle_rows, drift_rows, load_row, residue_rows
from bench.sleep_picture import WIDTH, Bar, draw

GB = 10**9
SVG = "{http://www.w3.org/2000/svg}"


def make_cycle(back_s=0.5, peer_s=0.5, **fields):
    """Return a good cycle of one GB, which verifies for 0.1 s more."""
    wake_phases = {"reserve": 0.0, "weights": back_s, "verify": 0.1}
    cycle = Cycle(1, GB * 9 // 10, GB // 10, GB, 0.02, back_s + 0.1, {"save": 0.0, "drop": 0.02}, wake_phases, peer_s)
    return msgspec.structs.replace(cycle, **fields)


def verdicts(rows):
    return {row.what: row.holds for row in rows if row.goal}


def test_a_wake_is_judged_by_the_pair_in_the_middle_before_it_is_verified():
    cycles = [make_cycle(0.5, 0.5), make_cycle(0.58, 0.5), make_cycle(2.0, 0.1)]
    wake = next(row for row in cycle_rows({1: cycles}) if row.peer)
    assert (wake.ours, wake.peer, wake.ratio, wake.holds) == (580.0, 500.0, 1.16, True)


@pytest.mark.parametrize(("level", "limit"), [(1, 1.2), (2, 1.5)])
def test_every_goal_of_a_level_can_be_missed(level, limit):
    good = cycle_rows({level: [make_cycle()]})
    bad = cycle_rows({level: [make_cycle(0.51 * limit, 0.5, fell_bytes=GB * 94 // 100, sleep_s=0.06)]})
    assert list(verdicts(good).values()) == [True, True, True]
    assert list(verdicts(bad).values()) == [False, False, False]


def test_every_phase_has_a_row_without_a_goal():
    phases = [row for row in cycle_rows({1: [make_cycle()]}) if "phase" in row.what]
    assert [row.what.rpartition(" ")[2] for row in phases] == ["save", "drop", "reserve", "weights", "verify"]
    assert [row.ours for row in phases] == [0.0, 20.0, 0.0, 500.0, 100.0]
    assert {row.goal for row in phases} == {None}


def test_the_host_copy_is_no_residue():
    asleep = {1: Held(1_500, 5, 9, host_copy_bytes=500), 2: Held(1_051, 5, 9)}
    assert list(verdicts(residue_rows(Held(1_000, 5, 9), asleep)).values()) == [True, False]


def test_memory_files_and_threads_may_not_drift():
    before = Held(100_000, 10, 4)
    assert set(verdicts(drift_rows(100, before, Held(101_000, 10, 4))).values()) == {True}
    assert list(verdicts(drift_rows(100, before, Held(98_000, 11, 3))).values()) == [False, False, False]


def test_a_profile_may_be_wrong_by_a_twentieth_either_way():
    assert [load_row(Load(1_000, used)).holds for used in (949, 950, 1_050, 1_051)] == [False, True, True, False]


def test_the_picture_has_every_phase_in_its_length_and_nothing_outside():
    bars = [Bar("sleep <1>", {"drop": 0.1}), Bar("wake", {"weights": 0.3, "verify": 0.1})]
    picture = ET.fromstring(draw("title", bars))
    rectangles = [(float(r.get("x", 0)), float(r.get("width"))) for r in picture.iter(f"{SVG}rect")]
    _, drop, weights, verify, *legend = rectangles
    assert weights[1] == pytest.approx(3 * drop[1], abs=0.2)
    assert verify[0] == pytest.approx(weights[0] + weights[1], abs=0.2)
    assert all(x + width <= WIDTH for x, width in rectangles)
    assert len(legend) == 3
    assert {"sleep <1>", "100 ms", "400 ms"} <= {text.text for text in picture.iter(f"{SVG}text")}
