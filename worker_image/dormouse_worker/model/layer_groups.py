"""Divides a model's layers into groups that share block tables: layers that see everything, layers with a window.

All groups have the same number of layers, and the layers at one place of every group store the same bytes per token.
So one block serves any group, and what a window gives back is free for everybody:

    layers    0 full   1 window  2 full   3 window         groups  (0, 2) full   (1, 3) window
    pool 0    layers 0 and 1       pool 1    layers 2 and 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

MAX_GROUPS = 8  # beyond it tables cost more than windows give back


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with one block table."""

    layers: tuple[int, ...]
    window: int | None = None  # every layer's sliding window in tokens; None = its layers see everything, or differ


def group_layers(stored: Sequence[object], windows: Sequence[int | None]) -> tuple[LayerGroup, ...]:
    """Return the groups, from what each layer stores per token and its window; one group if windows cannot help."""
    by_window: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        by_window.setdefault(window, []).append(layer)
    size = gcd(*(len(layers) for layers in by_window.values()))
    groups = tuple(
        LayerGroup(tuple(layers[start : start + size]), window)
        for window, layers in by_window.items()
        for start in range(0, len(layers), size)
    )
    is_even = all(len({stored[group.layers[place]] for group in groups}) == 1 for place in range(size))
    if len(groups) <= MAX_GROUPS and (is_even or len(groups) == 1):
        return groups
    return (LayerGroup(tuple(range(len(stored)))),)
