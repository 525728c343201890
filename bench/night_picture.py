"""Draws one night of a model as SVG: requests, held ones, pods and state over time. No library: lines and words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

from bench.ladder.findings import Moment
from bench.svg import document, text

WIDTH, LEFT, RIGHT, TOP = 900, 110, 30, 50
LANE, GAP = 70, 34  # height of each of the curves, and between them
BAND = 26  # height of the state
STATES = {  # colour-blind safe, the deeper the darker
    "Active": "#f0e442",
    "Level1": "#56b4e9",
    "Level2": "#0072b2",
    "Zero": "#333333",
}
CHANGING = "#e69f00"  # starting, falling asleep, waking
CURVE = "#0072b2"
NUM_MARKS = 5
BIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Lane:
    """One curve: its name, and its value from each moment on."""

    name: str
    steps: Sequence[tuple[float, float]]

    @property
    def most(self) -> float:
        """Return the highest value, at least 1."""
        return max(1.0, *(value for _, value in self.steps))


def draw(title: str, moments: Sequence[Moment]) -> str:
    """Return the picture."""
    end_s = moments[-1].at_s
    lanes = lanes_of(moments)
    band = TOP + len(lanes) * (LANE + GAP)
    height = band + BAND + 80
    parts = [
        text(10, 24, title, weight="bold"),
    ]
    for place, lane in enumerate(lanes):
        parts += _draw_lane(lane, TOP + place * (LANE + GAP), end_s)
    parts += [text(10, band + 18, "state"), *_draw_states(moments, band, end_s)]
    for mark in range(NUM_MARKS + 1):
        at_s = end_s * mark / NUM_MARKS
        parts.append(text(_x(at_s, end_s) - 12, band + BAND + 20, f"{at_s:.0f} s"))
    return document(WIDTH, height, [*parts, *_draw_legend(height - 18)])


def lanes_of(moments: Sequence[Moment]) -> list[Lane]:
    """Return the curves: requests in each second, those that are held, pods."""
    asked = [(moment.at_s, moment.num_asked) for moment in moments]
    return [
        Lane("requests/s", rates(asked)),
        Lane("held", [(moment.at_s, moment.num_held) for moment in moments]),
        Lane("replicas", [(moment.at_s, moment.num_pods) for moment in moments]),
    ]


def rates(counts: Sequence[tuple[float, int]]) -> list[tuple[float, float]]:
    """Return by how much a count grew in each second; the last one begun is left out."""
    steps, before, begin_s = [], counts[0][1], counts[0][0]
    for at_s, count in counts:
        if at_s >= begin_s + BIN_S:
            steps.append((begin_s, (count - before) / (at_s - begin_s)))
            before, begin_s = count, at_s
    return steps or [(begin_s, 0.0)]


def spans(moments: Sequence[Moment], key: Callable[[Moment], str]) -> list[tuple[str, float, float]]:
    """Return (value, begin, end) of each time during which the key stays the same."""
    runs = [(value, next(iter(run)).at_s) for value, run in groupby(moments, key)]
    ends = [begin_s for _, begin_s in runs[1:]] + [moments[-1].at_s]
    return [(value, begin_s, end_s) for (value, begin_s), end_s in zip(runs, ends, strict=True)]


def _draw_lane(lane: Lane, top: int, end_s: float) -> list[str]:
    bottom = top + LANE
    points, former = [], 0.0
    for at_s, value in [*lane.steps, (end_s, lane.steps[-1][1])]:
        x = _x(at_s, end_s)
        points += [f"{x:.1f},{bottom - LANE * level / lane.most:.1f}" for level in (former, value)]
        former = value
    return [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}" stroke="#dddddd"/>',
        text(10, top + LANE / 2, lane.name),
        text(LEFT - 30, top + 12, f"{lane.most:.0f}"),
        text(LEFT - 30, bottom, "0"),
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{CURVE}" stroke-width="1.5"/>',
    ]


def _draw_states(moments: Sequence[Moment], top: int, end_s: float) -> list[str]:
    parts = []
    for state, begin_s, until_s in spans(moments, lambda moment: moment.state):
        x, color = _x(begin_s, end_s), STATES.get(state, CHANGING)
        width = max(1.0, _x(until_s, end_s) - x)
        parts.append(
            f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{BAND}" fill="{color}">'
            f"<title>{escape(state)}</title></rect>"
        )
    return parts


def _draw_legend(y: int) -> list[str]:
    parts = []
    for place, (name, color) in enumerate([*STATES.items(), ("changing", CHANGING)]):
        x = LEFT + place * 100
        parts += [f'<rect x="{x}" y="{y - 11}" width="12" height="12" fill="{color}"/>', text(x + 17, y, name)]
    return parts


def _x(at_s: float, end_s: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * at_s / (end_s or 1)
