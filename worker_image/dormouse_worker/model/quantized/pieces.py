"""Pieces of tensors that are asked for by their bytes, and made row by row."""

from __future__ import annotations

import torch


def put(numbers: torch.Tensor, offset: int, target: torch.Tensor) -> None:
    """Copy bytes that begin at an offset of the target, which may lie before its start, as far as it goes."""
    flat = numbers.view(-1)
    start, end = max(offset, 0), min(offset + len(flat), len(target))
    target[start:end] = flat[start - offset : end - offset]
