"""Draws a dashboard as SVG from what Prometheus answered. Our own plain drawing: it is not Grafana's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tools.dashboards.model import Dashboard, Panel, Unit

PANEL_WIDTH, PANEL_HEIGHT, GAP, HEAD = 360, 200, 12, 34
_PLOT_TOP, _PLOT_BOTTOM, _PLOT_LEFT = 30, 48, 52
_MAX_SERIES, _LEGEND_PER_ROW, _LEGEND_CHARS = 10, 2, 26
_COLOURS = ("#2f7ed8", "#e8743b", "#19a979", "#945ecf", "#ed4a7b", "#13a4b4", "#bf8b2e", "#6c8893", "#c33", "#484")
_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a panel: its legend and (seconds, value), ascending; values may be NaN."""

    name: str
    points: Sequence[tuple[float, float]]

    @property
    def finite(self) -> list[tuple[float, float]]:
        """Return the points that can be drawn."""
        return [(when, value) for when, value in self.points if math.isfinite(value)]


def draw(board: Dashboard, lines: Mapping[str, Sequence[Line]], *, start_s: float, end_s: float, note: str) -> str:
    """Return the picture; `lines` are by the panel's title, `note` stands below the board's title."""
    parts, top = [], 62
    columns = max(len(row) for row in board.rows.values())
    width = columns * (PANEL_WIDTH + GAP) + GAP
    for title, row in board.rows.items():
        parts.append(f'<text x="{GAP}" y="{top + 20}" class="row">{escape(title)}</text>')
        top += HEAD
        panel_width = (width - GAP) / len(row) - GAP
        for column, panel in enumerate(row):
            left = GAP + column * (panel_width + GAP)
            body = _panel(panel, lines.get(panel.title, ()), panel_width, (start_s, end_s))
            parts.append(f'<g transform="translate({left:.0f},{top})">{body}</g>')
        top += PANEL_HEIGHT + GAP
    head = f'<text x="{GAP}" y="28" class="board">{escape(board.title)}</text>'
    head += f'<text x="{GAP}" y="48">{escape(note)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}">'
        f"<style>{_STYLE}</style>"
        f'<rect width="{width}" height="{top}" fill="#f4f5f7"/>{head}{"".join(parts)}</svg>\n'
    )


_STYLE = (
    "text{font:11px sans-serif;fill:#555}.title{font-weight:bold;fill:#222;font-size:12px}"
    ".row{font-size:15px;fill:#222}.board{font-size:20px;font-weight:bold;fill:#222}"
    ".big{font-size:44px;font-weight:bold;fill:#19a979;text-anchor:middle}.y{text-anchor:end;font-size:10px}"
    "path{fill:none;stroke-width:1.6}.grid{stroke:#ddd;stroke-width:1}"
)


def _panel(panel: Panel, lines: Sequence[Line], width: float, span_s: tuple[float, float]) -> str:
    frame = f'<rect width="{width:.0f}" height="{PANEL_HEIGHT}" rx="4" fill="#fff" stroke="#ddd"/>'
    title = f'<text x="10" y="19" class="title">{escape(panel.title)}</text>'
    body = _number(panel, lines, width) if panel.kind == "stat" else _plot(panel, lines, width, span_s)
    return frame + title + body


def _number(panel: Panel, lines: Sequence[Line], width: float) -> str:
    last = [line.finite[-1][1] for line in lines if line.finite]
    text = shown(last[-1], panel.unit) if last else "–"
    return f'<text x="{width / 2:.0f}" y="{PANEL_HEIGHT / 2 + 16:.0f}" class="big">{text}</text>'


def _plot(panel: Panel, lines: Sequence[Line], width: float, span_s: tuple[float, float]) -> str:
    """Return axes, curves and legend; the busiest series, where there are many."""
    largest = sorted(lines, key=lambda line: -max((value for _, value in line.finite), default=0.0))[:_MAX_SERIES]
    top = max((value for line in largest for _, value in line.finite), default=0.0) or 1.0
    plot_width, plot_height = width - _PLOT_LEFT - 12, PANEL_HEIGHT - _PLOT_TOP - _PLOT_BOTTOM
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _PLOT_TOP + plot_height * (1 - share)
        parts.append(f'<path class="grid" d="M{_PLOT_LEFT} {y:.0f}H{width - 12:.0f}"/>')
        parts.append(f'<text x="{_PLOT_LEFT - 5}" y="{y + 4:.0f}" class="y">{shown(top * share, panel.unit)}</text>')
    for number, line in enumerate(largest):
        places = [
            (
                _PLOT_LEFT + plot_width * (when - span_s[0]) / (span_s[1] - span_s[0]),
                _PLOT_TOP + plot_height * (1 - value / top),
            )
            for when, value in line.finite
        ]
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<path stroke="{colour}" d="{_curve(places)}"/>')
        if number < 2 * _LEGEND_PER_ROW:
            parts.append(_legend(line.name, number, colour, width))
    return "".join(parts)


def _legend(name: str, number: int, colour: str, width: float) -> str:
    x = 10 + (number % _LEGEND_PER_ROW) * width / _LEGEND_PER_ROW
    y = PANEL_HEIGHT - 26 + number // _LEGEND_PER_ROW * 15
    text = name if len(name) <= _LEGEND_CHARS else f"…{name[-_LEGEND_CHARS:]}"
    mark = f'<rect x="{x:.0f}" y="{y - 8}" width="9" height="9" fill="{colour}"/>'
    return f'{mark}<text x="{x + 13:.0f}" y="{y}">{escape(text)}</text>'


def _curve(places: Sequence[tuple[float, float]]) -> str:
    """Return the path's data; points on a straight line between their neighbours are left out."""
    kept = [
        place
        for index, place in enumerate(places)
        if index in {0, len(places) - 1} or not places[index - 1][1] == place[1] == places[index + 1][1]
    ]
    return "".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(kept)) or "M0 0"


def shown(value: float, unit: Unit) -> str:
    """Return a value with its unit, in few characters."""
    if unit == "bytes":
        size, word = next(((s, w) for s, w in _SIZES if value >= s), (1, "B"))
        return f"{value / size:.3g} {word}"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s" and 0 < value < 1:
        return f"{value * 1000:.3g} ms"
    text = f"{value:.0f}" if value >= 100 else f"{value:.3g}"  # three digits
    return text + {"s": " s", "reqps": "/s", "ops": "/s", "short": ""}[unit]
