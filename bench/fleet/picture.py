"""Draws how many deployments got how far over time, one SVG file. No library: lines and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.svg import document, text

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 420, 70, 30, 50, 70
COLORS = ("#0072b2", "#e69f00", "#009e73")  # colour-blind safe
NUM_MARKS = 5


def draw(title: str, curves: Mapping[str, Sequence[float]]) -> str:
    """Return the picture: for each curve, how many of its moments (in seconds) have passed."""
    end_s = max(max(moments) for moments in curves.values())
    most = max(len(moments) for moments in curves.values())
    parts = [
        text(10, 24, title, weight="bold"),
        *_axes(end_s, most),
    ]
    for place, (name, moments) in enumerate(curves.items()):
        color = COLORS[place % len(COLORS)]
        points = " ".join(f"{_x(at, end_s):.1f},{_y(passed, most):.1f}" for at, passed in steps(moments))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<rect x="{LEFT + place * 200}" y="{HEIGHT - 25}" width="12" height="12" fill="{color}"/>')
        parts.append(text(LEFT + place * 200 + 18, HEIGHT - 14, name))
    return document(WIDTH, HEIGHT, parts)


def steps(moments: Sequence[float]) -> list[tuple[float, int]]:
    """Return (moment, how many have passed), from nothing on."""
    return [(0.0, 0), *((at, passed) for passed, at in enumerate(sorted(moments), 1))]


def _axes(end_s: float, most: int) -> list[str]:
    parts = []
    for mark in range(NUM_MARKS + 1):
        at, passed = end_s * mark / NUM_MARKS, most * mark / NUM_MARKS
        x, y = _x(at, end_s), _y(passed, most)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts += [text(10, y + 4, f"{passed:,.0f}"), text(x - 12, HEIGHT - BOTTOM + 20, f"{at:.0f} s")]
    return parts


def _x(at_s: float, end_s: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * at_s / (end_s or 1)


def _y(passed: float, most: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * passed / most
