"""Positions in time, height and width, of models whose rotary embedding turns by all three.

As Qwen2-VL has them: text counts up in all three alike; an image's rows count from where it begins along its own axes,
and what follows goes on behind its height and width. Images without text between them follow each other.

Steps of a video begin together in height and width, each as far in time as the front says. What follows goes on from
height and width alone, however long the video is; so does an answer, as in transformers' `generate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dormouse_worker.common.images import ImageInput
from dormouse_worker.model.arrays import Ints


def prompt_positions(images: Sequence[ImageInput], num_tokens: int, merge: int) -> Ints:
    """Return positions [3, num_tokens + 1] of a prompt's tokens and of the first one behind it.

    `merge` patches in height and in width make one row.
    """
    parts: list[Ints] = []
    end = position = film = 0
    for image in images:
        time, height, width = _rows_of(image, merge)
        parts.append(_text(position, image.start - end))
        position += image.start - end
        number, time_behind = image.moment or (0, 0)
        film = film if number else position
        rows = np.indices((time, height, width)).reshape(3, -1) + film
        rows[0] += time_behind
        parts.append(rows)
        position = film + max(height, width)
        end = image.end
    parts.append(_text(position, num_tokens + 1 - end))
    return np.concatenate(parts, axis=1)


def span_positions(of_prompt: Ints, positions: Ints) -> Ints:
    """Return where tokens [n] of a sequence stand, [3, n]: behind the prompt they count on."""
    last = of_prompt.shape[1] - 1
    behind = np.maximum(positions - last, 0)
    found: Ints = of_prompt[:, np.minimum(positions, last)] + behind
    return found


def rope_axes(rotary: Any) -> npt.NDArray[np.uint8] | None:
    """Return by which axis, 0 to 2, each frequency of a rotary module turns; None = by all alike, as in text.

    Qwen2-VL's kinds have the axes one behind another, Qwen3-VL's in turns as long as there are any of an axis.
    """
    sections = getattr(rotary, "mrope_section", None)
    if sections is None:
        return None
    if not type(rotary).__name__.startswith("Qwen3VL"):
        return np.repeat(np.arange(3, dtype=np.uint8), sections)
    axes = np.zeros(sum(sections), dtype=np.uint8)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes


def _rows_of(image: ImageInput, merge: int) -> tuple[int, int, int]:
    """Return the rows along each axis. A grid that makes others than the prompt has fails when it is encoded."""
    time, height, width = image.grid or (0, 0, 0)
    num_tokens = image.end - image.start
    rows = time, height // merge, width // merge
    return rows if min(rows) > 0 and rows[0] * rows[1] * rows[2] == num_tokens else (1, 1, num_tokens)


def _text(position: int, count: int) -> Ints:
    return np.broadcast_to(np.arange(position, position + count), (3, count))
