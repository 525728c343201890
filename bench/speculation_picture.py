"""Draws how many times as fast drafts make it, over the share of right tokens, a line for each batch size. One SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.svg import document, text

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 620, 400, 60, 50, 140, 50
LINE = 16  # of words
COLORS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#999999")  # colour-blind safe


def draw(speed_ups: Mapping[tuple[int, float], float]) -> str:
    """Return the picture of speed-ups by (sequences, share of right tokens)."""
    highest = max(1.5, *speed_ups.values())
    parts = [text(10, 24, "Speed with drafts, over that without", weight="bold"), *_axes(highest)]
    sizes = sorted({seqs for seqs, _ in speed_ups})
    lines = [sorted((share, value) for (seqs, share), value in speed_ups.items() if seqs == size) for size in sizes]
    ends = _apart([_y(line[-1][1], highest) for line in lines])
    for color, num_seqs, line, end in zip(COLORS, sizes, lines, ends, strict=False):
        places = [(_x(share), _y(value, highest)) for share, value in line]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places]
        parts.append(text(places[-1][0] + 8, end + 4, f"{num_seqs} sequences" if num_seqs > 1 else "1 sequence"))
    return document(WIDTH, HEIGHT, parts)


def _apart(heights: Sequence[float]) -> list[float]:
    """Return these heights, moved down until words at them do not cover each other."""
    moved, lowest = list(heights), 0.0
    for place in sorted(range(len(moved)), key=heights.__getitem__):
        moved[place] = lowest = max(heights[place], lowest + LINE)
    return moved


def _axes(highest: float) -> list[str]:
    parts = []
    for tick in range(int(highest) + 1):
        y = _y(tick, highest)
        stroke = "#666666" if tick == 1 else "#dddddd"  # 1 = as fast as without
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{stroke}"/>')
        parts.append(text(LEFT - 10, y + 4, f"{tick} ×", anchor="end"))
    percents = (0, 25, 50, 75, 100)
    shares = [text(_x(each / 100), HEIGHT - BOTTOM + 20, f"{each} %", anchor="middle") for each in percents]
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*parts, *shares, text(middle, HEIGHT - 10, "predicted tokens that are right", anchor="middle")]


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(value: float, highest: float) -> float:
    return HEIGHT - BOTTOM - value / highest * (HEIGHT - TOP - BOTTOM)
