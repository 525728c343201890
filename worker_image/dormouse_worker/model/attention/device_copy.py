"""Brings the host's arrays of a pass to the device in one copy, and divides a workspace into tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.to_device import on_host_for, to_device

ALIGNMENT_BYTES = 256
ALIGNED_INTS = 4  # Triton compiles a kernel anew for a pointer that is not a multiple of 16 bytes


def stage(arrays: Sequence[Ints], device: torch.device) -> list[torch.Tensor]:
    """Return the arrays as int32 in one piece of host memory; see `on_host_for`."""
    return _divide(on_host_for(_pack(arrays), device), arrays)


def upload(arrays: Sequence[Ints], device: torch.device) -> list[torch.Tensor]:
    """Return the arrays on the device as int32 tensors of their shapes, which share one storage."""
    return _divide(to_device(_pack(arrays), device), arrays)


def _pack(arrays: Sequence[Ints]) -> npt.NDArray[np.int32]:
    packed = np.zeros(sum(_aligned(array.size) for array in arrays), dtype=np.int32)
    start = 0
    for array in arrays:
        packed[start : start + array.size] = array.reshape(-1)
        start += _aligned(array.size)
    return packed


def _divide(packed: torch.Tensor, arrays: Sequence[Ints]) -> list[torch.Tensor]:
    sections = torch.split(packed, [_aligned(array.size) for array in arrays])
    return [section[: array.size].view(array.shape) for section, array in zip(sections, arrays, strict=True)]


def _aligned(size: int) -> int:
    return -(-size // ALIGNED_INTS) * ALIGNED_INTS


def carved_bytes(shapes: Sequence[tuple[int, ...]]) -> int:
    """Return the bytes that `carve` needs for tensors of four-byte elements."""
    return sum(_section_bytes(shape) for shape in shapes)


def carve(buffer: torch.Tensor, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
    """Return tensors of four-byte elements that lie in the buffer, uint8 [n], one behind another and aligned."""
    tensors, start = [], 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        tensors.append(buffer[start : start + 4 * prod(shape)].view(dtype).view(shape))
        start += _section_bytes(shape)
    return tensors


def _section_bytes(shape: tuple[int, ...]) -> int:
    return -(-4 * prod(shape) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
