"""Draws durations by phase as bars, one SVG file. No library: rectangles and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.svg import document, text

WIDTH, BAR, GAP, LEFT, TOP = 900, 26, 14, 250, 40
COLORS = {  # by phase; colour-blind safe
    "save": "#0072b2",
    "drop": "#56b4e9",
    "reserve": "#999999",
    "weights": "#e69f00",
    "kv_cache": "#f0e442",
    "verify": "#009e73",
    "first token": "#0072b2",
    "others": "#e69f00",
}
OTHER = "#cccccc"


@dataclass(frozen=True, slots=True)
class Bar:
    """One operation: its phases in order, in seconds."""

    title: str
    phases: Mapping[str, float]


def draw(title: str, bars: Sequence[Bar]) -> str:
    """Return the picture; all bars have one scale."""
    longest_s = max(sum(bar.phases.values()) for bar in bars)
    scale = (WIDTH - LEFT - 90) / longest_s
    height = TOP + len(bars) * (BAR + GAP) + 40
    parts = [
        text(10, 24, title, weight="bold"),
    ]
    for row, bar in enumerate(bars):
        parts += _draw_bar(bar, TOP + row * (BAR + GAP), scale)
    parts += _draw_legend([name for bar in bars for name in bar.phases], height - 18)
    return document(WIDTH, height, parts)


def _draw_bar(bar: Bar, top: int, scale: float) -> list[str]:
    parts, left = [text(10, top + 18, bar.title)], float(LEFT)
    for name, seconds in bar.phases.items():
        width = seconds * scale
        color = COLORS.get(name, OTHER)
        parts.append(f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" fill="{color}"/>')
        left += width
    return [*parts, text(left + 6, top + 18, f"{1e3 * sum(bar.phases.values()):.0f} ms")]


def _draw_legend(names: Sequence[str], y: int) -> list[str]:
    parts = []
    for place, name in enumerate(name for name in COLORS if name in names):
        x = LEFT + place * 95
        parts += [f'<rect x="{x}" y="{y - 11}" width="12" height="12" fill="{COLORS[name]}"/>', text(x + 17, y, name)]
    return parts
