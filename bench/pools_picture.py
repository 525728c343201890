"""Draws who had which slot of a pool, and when, as SVG: a panel an arbiter, a lane a slot. No library: boxes and words.

A box is one stretch in which a model had the slot, with the time in which its last calls ended. What is white is
switching, or nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench.svg import document, text

WIDTH, LEFT, RIGHT, TOP = 900, 70, 30, 50
LANE, GAP, BETWEEN = 18, 4, 40  # height of a slot, and what is left below it and below a panel
NUM_MARKS = 5
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")  # the most called models
OTHER = "#bbbbbb"


@dataclass(frozen=True, slots=True)
class Stretch:
    """One model that had a slot without a break, in seconds of the trace."""

    slot: str
    model: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """What of a trace is drawn: [start, end) in seconds."""

    start_s: float
    end_s: float

    def x(self, at_s: float) -> float:
        """Return where a moment is drawn, at most at the window's edges."""
        share = (min(max(at_s, self.start_s), self.end_s) - self.start_s) / (self.end_s - self.start_s)
        return LEFT + share * (WIDTH - LEFT - RIGHT)


def draw(title: str, panels: Mapping[str, Iterable[Stretch]], num_slots: int, window: Window) -> str:
    """Return the picture; panels by what stands above them."""
    panel_height = num_slots * (LANE + GAP) + BETWEEN
    height = TOP + len(panels) * panel_height + 30
    parts = [text(10, 24, title, weight="bold")]
    for row, (name, stretches) in enumerate(panels.items()):
        parts += _draw_panel(name, list(stretches), num_slots, TOP + row * panel_height, window)
    return document(WIDTH, height, [*parts, *_draw_legend(height - 14)])


def _draw_panel(name: str, stretches: list[Stretch], num_slots: int, top: int, window: Window) -> list[str]:
    tops = {str(slot): top + 10 + slot * (LANE + GAP) for slot in range(num_slots)}
    seen = [found for found in stretches if found.start_s < window.end_s and found.end_s > window.start_s]
    bottom = top + 10 + num_slots * (LANE + GAP) + 11
    return [
        text(10, top, name),
        *(text(10, y + 14, f"slot {slot}") for slot, y in tops.items()),
        *(_draw_stretch(found, tops[found.slot], window) for found in seen),
        *_draw_marks(bottom, window),
    ]


def _draw_stretch(stretch: Stretch, top: int, window: Window) -> str:
    left, right = window.x(stretch.start_s), window.x(stretch.end_s)
    color = COLORS[stretch.model] if stretch.model < len(COLORS) else OTHER
    return f'<rect x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{LANE}" fill="{color}"/>'


def _draw_marks(y: int, window: Window) -> list[str]:
    seconds = [window.start_s + (window.end_s - window.start_s) * mark / NUM_MARKS for mark in range(NUM_MARKS + 1)]
    return [text(window.x(at_s), y, f"{at_s / 60:g} min", anchor="middle") for at_s in seconds]


def _draw_legend(y: int) -> list[str]:
    parts = []
    for place, color in enumerate((*COLORS, OTHER)):
        x = LEFT + place * 95
        name = f"model {place}" if place < len(COLORS) else "others"
        parts += [f'<rect x="{x}" y="{y - 11}" width="12" height="12" fill="{color}"/>', text(x + 17, y, name)]
    return parts
