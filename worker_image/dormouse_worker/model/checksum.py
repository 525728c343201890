"""A checksum of memory that knows positions: the same value on every device, at about the speed of its memory.

    block of 1 MiB   256 rows of 512 numbers (int64): the sum of each row and of each lane, each mixed with its place
    the whole        the sum of all that, modulo 2**64; the last row is filled up with zeros

A sum of parts is the checksum of the whole, so threads may share a tensor, cut where blocks begin. Our kernels compute
it on a host that has them, a third as long as numpy; torch does on a device. It finds accidents (another file, damaged
memory), not malice: who wants to can make two contents with one checksum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dormouse_worker.model.tensors import Tensor, as_array, pointer_to
from dormouse_worker.native.library import Missing, load_kernels

if TYPE_CHECKING:
    import torch

BLOCK_BYTES = 1 << 20
_ROWS, _LANES = 256, 512
_ROW_BYTES = _LANES * 8
_SUMS_PER_BLOCK = _ROWS + _LANES
_MODULUS = 1 << 64
_KEY = -7046029254386353131  # 2**64 divided by the golden ratio, as a signed number
_FACTOR = -4658895280553007687  # of splitmix64's last step
_LOW_32 = (1 << 32) - 1
_LOW_35 = (1 << 35) - 1
_DEVICE_BLOCKS = 1024  # at once, which bounds the tensors of sums


def checksum(data: Tensor, first_block: int = 0) -> int:
    """Return the checksum of uint8 [n], dense, which begins with this block of the whole; in [0, 2**64)."""
    is_on_host = isinstance(data, np.ndarray) or data.device.type == "cpu"
    if is_on_host and not isinstance(kernels := load_kernels(), Missing):
        array = as_array(data)
        assert array.dtype == np.uint8, array.dtype
        assert array.flags.c_contiguous
        return kernels.checksum(pointer_to(data), len(data), first_block)
    num_blocks = len(data) // BLOCK_BYTES
    whole, rest = data[: num_blocks * BLOCK_BYTES], data[num_blocks * BLOCK_BYTES :]
    total = _of_host(whole, first_block) if is_on_host else _of_device(whole, first_block)
    if len(rest):
        total += _of_rest(rest, first_block + num_blocks)
    return total % _MODULUS


def combine(parts: list[int]) -> int:
    """Return the checksum of what the parts make up."""
    return sum(parts) % _MODULUS


def _of_host(data: Tensor, first_block: int) -> int:
    """Sum up block by block, each in the processor's cache, on this thread alone."""
    words: Any = as_array(data).view(np.int64).reshape(-1, 1, _ROWS, _LANES)
    places = np.arange(_SUMS_PER_BLOCK)[None]
    return sum(
        _mixed(block, (places + number * _SUMS_PER_BLOCK) * _KEY) for number, block in enumerate(words, first_block)
    )


def _of_device(data: torch.Tensor, first_block: int) -> int:
    """Sum up many blocks by few kernels."""
    import torch

    step = _DEVICE_BLOCKS * BLOCK_BYTES
    total = 0
    for start in range(0, len(data), step):
        blocks = _words(data[start : start + step]).view(-1, _ROWS, _LANES)
        places = torch.arange(len(blocks) * _SUMS_PER_BLOCK, device=data.device).view(len(blocks), -1)
        first_place = (first_block + start // BLOCK_BYTES) * _SUMS_PER_BLOCK
        total += _mixed(blocks, (places + first_place) * _KEY)
    return total


def _of_rest(data: torch.Tensor, block: int) -> int:
    """Sum up less than a block. Rows that are not there count nothing."""
    import torch

    num_rows = -(-len(data) // _ROW_BYTES)
    padded = torch.zeros(num_rows * _ROW_BYTES, dtype=torch.uint8, device=data.device)
    padded[: len(data)] = data
    places = torch.arange(_SUMS_PER_BLOCK, device=data.device) + block * _SUMS_PER_BLOCK
    return _mixed(padded.view(torch.int64).view(1, num_rows, _LANES), places[None] * _KEY)


def _words(data: torch.Tensor) -> torch.Tensor:
    """Return int64 [n / 8]; a copy only where the data begins between two numbers."""
    import torch

    aligned = data if data.storage_offset() % torch.int64.itemsize == 0 else data.clone()
    return aligned.view(torch.int64)


def _mixed(blocks: Any, keys: Any) -> int:
    """Return the sum for [blocks, rows, lanes] with their places' keys; arrays or tensors, int64 wrapping around."""
    rows = _mix(blocks.sum(2) + keys[:, : blocks.shape[1]])
    lanes = _mix(blocks.sum(1) + keys[:, _ROWS:])
    return int(rows.sum()) + int(lanes.sum())


def _mix(numbers: Any) -> Any:
    """Spread each number's bits over all 64, one to one."""
    mixed = (numbers ^ ((numbers >> 32) & _LOW_32)) * _FACTOR
    mixed = (mixed ^ ((mixed >> 29) & _LOW_35)) * _KEY
    return mixed ^ ((mixed >> 32) & _LOW_32)
