"""A dashboard as a picture: whatever is in the data, it is an SVG that can be read."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from tools.dashboards import FLEET
from tools.dashboards.picture import Line, draw, shown

SPAN = {"start_s": 0.0, "end_s": 10.0}


def texts(svg):
    return [node.text for node in ET.fromstring(svg).iter() if node.tag.endswith("text")]


def paths(svg):
    root = ET.fromstring(svg)
    return [node.attrib["d"] for node in root.iter() if node.tag.endswith("path") and "stroke" in node.attrib]


def test_a_panel_without_data_is_drawn_empty():
    svg = draw(FLEET, {}, **SPAN, note="nothing")
    assert {panel.title for panel in FLEET.panels} <= set(texts(svg))
    assert "–" in texts(svg)
    assert paths(svg) == []


def test_what_is_not_finite_is_left_out_and_names_are_escaped():
    line = Line("<a> & b", [(0.0, 1.0), (5.0, float("nan")), (10.0, 2.0)])
    svg = draw(FLEET, {"Busiest models": [line]}, **SPAN, note="x < y")
    assert "<a> & b" in texts(svg)
    assert "x < y" in texts(svg)
    (path,) = paths(svg)
    assert path.count("L") == 1


def test_a_level_line_keeps_only_its_ends():
    line = Line("flat", [(float(second), 3.0) for second in range(11)])
    (path,) = paths(draw(FLEET, {"Busiest models": [line]}, **SPAN, note=""))
    assert path.count("L") == 1


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0 s"),
        (0.0123, "s", "12.3 ms"),
        (90.0, "s", "90 s"),
        (3 * 2**30, "bytes", "3 GiB"),
        (512, "bytes", "512 B"),
        (0.25, "percentunit", "25 %"),
        (12345.0, "short", "12345"),
        (1.5, "reqps", "1.5/s"),
    ],
)
def test_a_value_is_shown_with_its_unit(value, unit, text):
    assert shown(value, unit) == text
