"""Keys and values of 8 bits: what lies in a pool for one head of one token. Pure; `native/src/cached.h` agrees.

row [size + 2] int8   numbers of 8 bits, then the size of their steps in bfloat16: the largest number, divided by MOST

int8   whole numbers from -127 to 127. Keys are rotated before: in many models a few channels of a head are far larger
       than the others, and would leave few numbers to them
fp8    e4m3, a sign, four bits of exponent, three of mantissa, up to 448: small ones are as exact as large ones, which a
       rotation would only spread the error of

A row has its scale to itself, so that blocks are written token by token and no row twice. A row that is not finite has
a scale that is no number, and whoever reads it gets that.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from dormouse_worker.model.quantized.blocks import block_size_of

if TYPE_CHECKING:
    import torch

INT8, FP8 = "int8", "fp8"
MOST = MappingProxyType({INT8: 127.0, FP8: 448.0})  # the largest of the numbers
SCALE_BYTES = 2
_ALMOST_ZERO = 1e-30


def row_size(size: int) -> int:
    """Return the bytes of a head's row of so many numbers."""
    return size + SCALE_BYTES


def mixed_size(size: int, stored: str) -> int:
    """Return how many numbers of a key of that size are rotated together; 1 = it stays as it is."""
    return block_size_of(size) if stored == INT8 else 1


def round_keys(keys: torch.Tensor, stored: str) -> torch.Tensor:
    """Return rows int8 [..., size + 2] of keys [..., size]; `stored` is INT8 or FP8, as everywhere here."""
    from dormouse_worker.model.quantized.rotation import mix

    return round_values(mix(keys) if stored == INT8 else keys, stored)


def round_values(values: torch.Tensor, stored: str) -> torch.Tensor:
    """Return rows int8 [..., size + 2] of values [..., size]."""
    import torch

    values = values.float()
    most = values.abs().amax(-1, keepdim=True)
    most = torch.where(values.isfinite().all(-1, keepdim=True), most, torch.nan)
    scales = torch.where(most < _ALMOST_ZERO, 0, most / MOST[stored]).bfloat16()
    steps = scales.float()
    numbers = torch.where(steps > 0, values * steps.reciprocal(), 0)
    rounded = numbers.round().to(torch.int8) if stored == INT8 else numbers.to(torch.float8_e4m3fn).view(torch.int8)
    return torch.cat([rounded, scales.view(torch.int8)], -1)


def plain_keys(rows: torch.Tensor, stored: str, dtype: torch.dtype) -> torch.Tensor:
    """Return what keys [..., size] became by rounding."""
    from dormouse_worker.model.quantized.rotation import mix

    keys = _plain(rows, stored)
    return (mix(keys) / mixed_size(keys.shape[-1], stored) if stored == INT8 else keys).to(dtype)


def plain_values(rows: torch.Tensor, stored: str, dtype: torch.dtype) -> torch.Tensor:
    """Return what values [..., size] became by rounding."""
    return _plain(rows, stored).to(dtype)


def _plain(rows: torch.Tensor, stored: str) -> torch.Tensor:
    import torch

    numbers, scales = (
        part.clone(memory_format=torch.contiguous_format)
        for part in (rows[..., :-SCALE_BYTES], rows[..., -SCALE_BYTES:])
    )
    numbers = numbers if stored == INT8 else numbers.view(torch.float8_e4m3fn)
    return numbers.float() * scales.view(torch.bfloat16).float()
