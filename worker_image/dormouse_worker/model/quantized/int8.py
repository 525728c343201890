"""Weights of 8 bits: whole numbers with one scale for each output. Pure; the formula that all who compute agree on.

weight [out, in]   uint8, 128 = zero; 1 to 255 stand for -127 to 127
scale  [out]       float32: the largest number of the row, divided by 127

The numbers are those of rotated weights (see `rotation`, `rounding`).
"""

from __future__ import annotations

import torch

from dormouse_worker.model.parallel.shards import Spans
from dormouse_worker.model.quantized.blocks import ZERO


def expand(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the rotated weight float32 [n, in], on any device."""
    return weight.float().sub_(ZERO).mul_(scale[:, None])


def take_columns(weight: torch.Tensor, spans: Spans) -> torch.Tensor:
    """Return the numbers uint8 [n, some] of some columns of [n, in]."""
    return torch.cat([weight[:, start:stop] for start, stop in spans], 1)
