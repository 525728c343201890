"""MXFP4, as gpt-oss's files have their experts: 32 inputs of 4 bits with a power of two for all of them. Pure.

files   NAME_blocks [experts, out, in / 32, 16]  uint8: byte i of a block has inputs 2 i (its low half) and 2 i + 1
        NAME_scales [experts, out, in / 32]      uint8: a block is multiplied with 2 to the power of that - 127
memory  NAME [experts, out, in / 32 · 17]        uint8; a chunk is 32 inputs: byte i has input i (its low half) and
                                                 input 16 + i; then the scale

A half has a sign, two bits of exponent and one of the mantissa (OCP Microscaling Formats 1.0). What chunks stand for is
exact in float32 and in bfloat16, which have the same exponents.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

NAME = "mxfp4"
BLOCK, BLOCK_BYTES, CHUNK_BYTES = 32, 16, 17
BIAS, MOST_SCALE = 127, 252  # the largest with which 6, the largest number, is finite
_SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NUMBERS = torch.tensor((*_SIZES, *(-size for size in _SIZES)))  # of a half

Bytes = npt.NDArray[np.uint8]


def row_bytes(columns: int) -> int:
    """Return the bytes of a row of so many columns, whole blocks of them."""
    return columns // BLOCK * CHUNK_BYTES


def pack(blocks: Bytes, scales: Bytes) -> Bytes:
    """Return chunks [n, 17] of blocks [n, 16] and their scales [n]."""
    first, second = blocks[:, : BLOCK_BYTES // 2], blocks[:, BLOCK_BYTES // 2 :]
    chunks = np.empty((len(blocks), CHUNK_BYTES), np.uint8)
    chunks[:, 0:BLOCK_BYTES:2] = first & 15 | second << 4
    chunks[:, 1:BLOCK_BYTES:2] = first >> 4 | second & 240
    chunks[:, BLOCK_BYTES] = scales
    return chunks


def expand(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the plain weight [out, in] of chunks [out, bytes], in float32 or bfloat16, on any device."""
    chunks = weight.view(len(weight), -1, CHUNK_BYTES)
    both, powers = chunks[..., :BLOCK_BYTES], chunks[..., BLOCK_BYTES:].int() - BIAS
    halves = torch.stack((both & 15, both >> 4), 2).int().view(-1)
    numbers = _NUMBERS.to(weight.device, dtype).index_select(0, halves).view(*chunks.shape[:2], BLOCK)
    numbers *= torch.ldexp(torch.ones_like(powers, dtype=torch.float32), powers).to(dtype)
    return numbers.flatten(1)
