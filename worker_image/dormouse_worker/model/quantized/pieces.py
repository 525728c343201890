"""Pieces of tensors that are asked for by their bytes, and made row by row."""

from __future__ import annotations

from dormouse_worker.model.tensors import Tensor


def put(numbers: Tensor, offset: int, target: Tensor) -> None:
    """Copy bytes that begin at an offset of the target, which may lie before its start, as far as it goes."""
    flat = numbers.reshape(-1)
    start, end = max(offset, 0), min(offset + len(flat), len(target))
    target[start:end] = flat[start - offset : end - offset]
