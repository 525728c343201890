"""Draws curves over a number, several panels in one SVG file. No library: lines and words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.svg import document, text

WIDTH, HEIGHT, COLUMNS = 460, 300, 2  # of a panel, and how many stand side by side
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 40, 34  # within it
HEAD, FOOT = 44, 40
COLORS = ("#0072b2", "#e69f00", "#009e73")  # colour-blind safe
MOST_TICKS = 6
Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves on one pair of axes; both begin at 0 unless `is_log`, where x goes by doublings."""

    title: str
    curves: Mapping[str, Curve]
    is_log: bool = False


def draw(title: str, panels: Sequence[Panel]) -> str:
    """Return the picture. All panels have the same curves, in one order."""
    rows = math.ceil(len(panels) / COLUMNS)
    width, height = COLUMNS * WIDTH, HEAD + rows * HEIGHT + FOOT
    parts = [
        text(14, 26, title, weight="bold"),
    ]
    for place, panel in enumerate(panels):
        row, column = divmod(place, COLUMNS)
        parts += Frame(panel, left=column * WIDTH + LEFT, top=HEAD + row * HEIGHT + TOP).draw()
    return document(width, height, [*parts, *_legend(panels[0].curves, height - 18)])


def ticks(most: float) -> list[float]:
    """Return round numbers from 0 to at least `most`, no more than MOST_TICKS steps between."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for factor in (1, 2, 5, 10) if (step := factor * power) >= rough * (1 - 1e-9))
    return [step * number for number in range(math.ceil(most / step * (1 - 1e-9)) + 1)]


class Frame:
    """One panel at its place: turns values into positions."""

    def __init__(self, panel: Panel, *, left: float, top: float) -> None:
        self._panel = panel
        self._left, self._right = left, left + WIDTH - LEFT - RIGHT
        self._top, self._bottom = top, top + HEIGHT - TOP - BOTTOM
        points = [point for curve in panel.curves.values() for point in curve]
        self._y_ticks = ticks(max(y for _, y in points))
        xs = sorted({x for x, _ in points})
        self._x_ticks = xs if panel.is_log else ticks(xs[-1])

    def __repr__(self) -> str:
        return f"Frame({self._panel.title})"

    def draw(self) -> list[str]:
        """Return its elements."""
        parts = [text(self._left - LEFT + 14, self._top - 16, self._panel.title)]
        for value in self._y_ticks:
            y = self._y(value)
            parts.append(_line((self._left, y), (self._right, y)))
            parts.append(text(self._left - 8, y + 4, f"{value:,g}", anchor="end"))
        below = self._bottom + 20
        parts += [text(self._x(value), below, f"{value:,g}", anchor="middle") for value in self._x_ticks]
        for color, curve in zip(COLORS, self._panel.curves.values(), strict=False):
            parts += self._draw_curve(curve, color)
        return parts

    def _draw_curve(self, curve: Curve, color: str) -> list[str]:
        places = [(self._x(x), self._y(y)) for x, y in curve]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        line = f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
        return [line, *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in places)]

    def _x(self, value: float) -> float:
        first, last = (self._scaled(tick) for tick in (self._x_ticks[0], self._x_ticks[-1]))
        return self._left + (self._right - self._left) * (self._scaled(value) - first) / ((last - first) or 1)

    def _scaled(self, value: float) -> float:
        return math.log2(value) if self._panel.is_log else value

    def _y(self, value: float) -> float:
        return self._bottom - (self._bottom - self._top) * value / self._y_ticks[-1]


def _legend(names: Iterable[str], y: float) -> list[str]:
    parts = []
    for place, (name, color) in enumerate(zip(names, COLORS, strict=False)):
        x = 14 + place * 120
        parts += [f'<rect x="{x}" y="{y - 11}" width="12" height="12" fill="{color}"/>', text(x + 18, y, name)]
    return parts


def _line(begin: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = begin, end
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'
