"""The night: when its requests come, and how it is drawn."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from bench.ladder.findings import Moment
from bench.ladder.parts import NIGHT_S, arrivals_s, state_of
from bench.night_picture import CHANGING, STATES, draw, lanes_of, rates, spans

MOMENTS = [
    Moment(0.0, "Active", 1, 0, 0),
    Moment(1.0, "Active", 1, 0, 4),
    Moment(2.0, "Level1", 1, 0, 4),
    Moment(3.0, "Zero", 0, 2, 6),
    Moment(4.0, "Pending", 1, 2, 6),
]


def test_the_night_is_the_same_in_every_run_and_ends_before_its_end():
    assert arrivals_s() == arrivals_s() == sorted(arrivals_s())
    assert 0 < arrivals_s()[0] < arrivals_s()[-1] < NIGHT_S


@pytest.mark.parametrize(
    ("phase", "rung", "state"),
    [
        ("Asleep", "Level2", "Level2"),
        ("Active", "Active", "Active"),
        ("Waking", "Level1", "Waking"),
        ("Zero", "Zero", "Zero"),
    ],
)
def test_a_state_is_the_phase_or_how_deep_it_sleeps(phase, rung, state):
    assert state_of(phase, rung) == state


def test_requests_are_counted_by_the_second():
    assert rates([(0.0, 0), (0.5, 2), (1.0, 4), (2.0, 4), (2.5, 9)]) == [(0.0, 4.0), (1.0, 0.0)]


def test_a_night_of_a_moment_has_no_requests():
    assert rates([(0.0, 5)]) == [(0.0, 0.0)]


def test_states_follow_each_other_without_a_gap():
    found = spans(MOMENTS, lambda moment: moment.state)
    assert found == [("Active", 0.0, 2.0), ("Level1", 2.0, 3.0), ("Zero", 3.0, 4.0), ("Pending", 4.0, 4.0)]


def test_the_picture_shows_the_curves_and_each_state_in_its_colour():
    root = ET.fromstring(draw("A <night>", MOMENTS))
    svg = "{http://www.w3.org/2000/svg}"
    words = [text.text for text in root.iter(f"{svg}text")]
    assert words[0] == "A <night>"
    assert {lane.name for lane in lanes_of(MOMENTS)} <= set(words)
    assert len(list(root.iter(f"{svg}polyline"))) == 3
    fills = {rect.find(f"{svg}title").text: rect.get("fill") for rect in root.iter(f"{svg}rect") if len(rect)}
    assert fills == {
        "Active": STATES["Active"],
        "Level1": STATES["Level1"],
        "Zero": STATES["Zero"],
        "Pending": CHANGING,
    }
