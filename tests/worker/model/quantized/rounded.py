"""Weights of fewer bits, as tensors."""

from __future__ import annotations

import torch

from dormouse_worker.model.quantized.rounding import INT8


def quantize_rows(rows, rounding=INT8):
    """Return numbers uint8 [n, bytes] and scales float32 [n] of rows [n, in]."""
    numbers, scales = rounding.quantize_rows(rows.detach().float().numpy())
    return torch.from_numpy(numbers), torch.from_numpy(scales)
