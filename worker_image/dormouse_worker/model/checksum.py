"""A checksum of memory that knows positions: the same value on every device, at about the speed of its memory.

    block of 1 MiB   256 rows of 512 numbers (int64): the sum of each row and of each lane, each mixed with its place
    the whole        the sum of all that, modulo 2**64; the end is filled up with zeros

A sum of parts is the checksum of the whole, so threads may share a tensor, cut where blocks begin. It finds accidents
(another file, damaged memory), not malice: who wants to can make two contents with one checksum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

BLOCK_BYTES = 1 << 20
_ROWS, _LANES = 256, 512
_SUMS_PER_BLOCK = _ROWS + _LANES
_MODULUS = 1 << 64
_KEY = -7046029254386353131  # 2**64 divided by the golden ratio, as a signed number
_FACTOR = -4658895280553007687  # of splitmix64's last step
_LOW_32 = (1 << 32) - 1
_DEVICE_BLOCKS = 1024  # at once: bounds nothing but the small tensors of sums


def checksum(data: torch.Tensor, first_block: int = 0) -> int:
    """Return the checksum of uint8 [n] which begins with this block of the whole; in [0, 2**64)."""
    whole_bytes = len(data) // BLOCK_BYTES * BLOCK_BYTES
    total = _whole_blocks(data[:whole_bytes], first_block)
    if whole_bytes < len(data):
        last = torch.zeros(BLOCK_BYTES, dtype=torch.uint8, device=data.device)
        last[: len(data) - whole_bytes] = data[whole_bytes:]
        total += _whole_blocks(last, first_block + whole_bytes // BLOCK_BYTES)
    return total % _MODULUS


def combine(parts: list[int]) -> int:
    """Return the checksum of what the parts make up."""
    return sum(parts) % _MODULUS


def _whole_blocks(data: torch.Tensor, first_block: int) -> int:
    """Sum block by block in host memory, where the second look finds a block in the processor's cache."""
    num_blocks = len(data) // BLOCK_BYTES
    if data.device.type == "cpu":
        words = data.numpy().view(np.int64).reshape(num_blocks, 1, _ROWS, _LANES)
        return sum(_mixed_sums(words[i], _keys_on_host(first_block + i)) for i in range(num_blocks))
    return sum(
        _of_device(data[i * BLOCK_BYTES : (i + _DEVICE_BLOCKS) * BLOCK_BYTES], first_block + i)
        for i in range(0, num_blocks, _DEVICE_BLOCKS)
    )


def _of_device(data: torch.Tensor, first_block: int) -> int:
    """Sum many blocks by few kernels, which is what a device is fast at."""
    aligned = data if data.storage_offset() % torch.int64.itemsize == 0 else data.clone()
    blocks = aligned.view(torch.int64).view(-1, _ROWS, _LANES)
    places = torch.arange(len(blocks) * _SUMS_PER_BLOCK, device=data.device).view(len(blocks), -1)
    return _mixed_sums(blocks, (places + first_block * _SUMS_PER_BLOCK) * _KEY)


def _keys_on_host(block: int) -> Any:
    return np.arange(block * _SUMS_PER_BLOCK, (block + 1) * _SUMS_PER_BLOCK, dtype=np.int64)[None] * _KEY


def _mixed_sums(blocks: Any, keys: Any) -> int:
    """Return the sum over [blocks, rows, lanes]; arrays and tensors alike, int64 that wraps around."""
    rows = _mix(blocks.sum(2) + keys[:, :_ROWS])
    lanes = _mix(blocks.sum(1) + keys[:, _ROWS:])
    return int(rows.sum()) + int(lanes.sum())


def _mix(numbers: Any) -> Any:
    """Spread each number's bits over all 64, one to one."""
    mixed = (numbers ^ ((numbers >> 32) & _LOW_32)) * _FACTOR
    mixed = (mixed ^ ((mixed >> 29) & (_MODULUS // 2 - 1 >> 28))) * _KEY
    return mixed ^ ((mixed >> 32) & _LOW_32)
