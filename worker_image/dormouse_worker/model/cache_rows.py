"""Keys and values of 8 bits: what lies in a pool for one head of one token. Pure; `native/src/cached.h` agrees.

row [size + 2] int8   whole numbers from -127 to 127, then their scale in bfloat16: the largest number, divided by 127

A row has its scale to itself, so that blocks are written token by token and no row twice. Keys are rotated before they
are rounded: in many models a few channels of a head are far larger than the others. A row that is not finite has a
scale that is no number, and whoever reads it gets that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dormouse_worker.model.quantized.blocks import MOST, block_size_of

if TYPE_CHECKING:
    import torch

SCALE_BYTES = 2
_ALMOST_ZERO = 1e-30


def row_size(size: int) -> int:
    """Return the bytes of a head's row of so many numbers."""
    return size + SCALE_BYTES


def round_keys(keys: torch.Tensor) -> torch.Tensor:
    """Return rows int8 [..., size + 2] of keys [..., size]."""
    from dormouse_worker.model.quantized.rotation import mix

    return round_values(mix(keys))


def round_values(values: torch.Tensor) -> torch.Tensor:
    """Return rows int8 [..., size + 2] of values [..., size]."""
    import torch

    values = values.float()
    most = values.abs().amax(-1, keepdim=True)
    most = torch.where(values.isfinite().all(-1, keepdim=True), most, torch.nan)
    scales = torch.where(most < _ALMOST_ZERO, 0, most / MOST).bfloat16()
    steps = scales.float()
    numbers = torch.where(steps > 0, (values * steps.reciprocal()).round(), 0).to(torch.int8)
    return torch.cat([numbers, scales.view(torch.int8)], -1)


def plain_keys(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what keys [..., size] became by rounding."""
    from dormouse_worker.model.quantized.rotation import mix

    rotated = _plain(rows)
    return (mix(rotated) / block_size_of(rotated.shape[-1])).to(dtype)


def plain_values(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what values [..., size] became by rounding."""
    return _plain(rows).to(dtype)


def _plain(rows: torch.Tensor) -> torch.Tensor:
    import torch

    scales = rows[..., -SCALE_BYTES:].clone(memory_format=torch.contiguous_format).view(torch.bfloat16)
    return rows[..., :-SCALE_BYTES].float() * scales.float()
