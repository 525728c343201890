"""Weights of 8 bits: whole numbers with one scale for each output. Pure; the formula that all who compute agree on.

weight [out, in]   uint8, 128 = zero; 1 to 255 stand for -127 to 127
scale  [out]       float32: the largest number of the row, divided by 127

The numbers are those of rotated weights (see `rotation`).
"""

from __future__ import annotations

import torch

from dormouse_worker.model.quantized.rotation import rotate

ZERO, MOST = 128, 127


def quantize_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return numbers uint8 [n, in] and scales float32 [n] of floating rows [n, in]; each depends on its row alone."""
    turned = rotate(rows)
    scales = turned.abs().amax(1) / MOST
    inverse = torch.where(scales > 0, 1 / scales, 0.0)
    numbers = turned.mul_(inverse[:, None]).round_().clamp_(-MOST, MOST).add_(ZERO)
    return numbers.to(torch.uint8), scales


def expand(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the rotated weight float32 [n, in], on any device."""
    return weight.float().sub_(ZERO).mul_(scale[:, None])
