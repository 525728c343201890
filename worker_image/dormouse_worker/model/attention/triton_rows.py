"""Rows of 8 bits as Triton's functions: what `cache_rows` defines, to the last bit. Called by `triton_kernels`.

Products that are rounded never meet a sum here: compilers would join the two, and the bits would be others.
"""

from __future__ import annotations

import triton
import triton.language as tl

ALMOST_ZERO = tl.constexpr(1e-30)
MOST = tl.constexpr(127.0)
INFINITE_BITS = tl.constexpr(0x7F800000)
NO_NUMBER = tl.constexpr(0x7FC0)  # in bfloat16


@triton.jit
def mix(rows, ROWS: tl.constexpr, SIZE: tl.constexpr, STEPS: tl.constexpr):
    """Return sums and differences float32 [ROWS, SIZE] of blocks of 2^STEPS columns, in the order of `rotation.mix`."""
    mixed = rows
    for step in tl.static_range(STEPS):
        pairs = tl.reshape(mixed, [ROWS * SIZE // (2 << step), 2, 1 << step])
        low, high = tl.split(tl.trans(pairs, 0, 2, 1))
        pairs = tl.trans(tl.join(low + high, low - high), 0, 2, 1)
        mixed = tl.reshape(pairs, [ROWS, SIZE])
    return mixed


@triton.jit
def nearest(numbers):
    """Return the whole numbers int32 that are nearest, of two the even one."""
    low = tl.floor(numbers)
    middle, whole = low + 0.5, low.to(tl.int32)
    return tl.where(numbers == middle, whole + (whole & 1), tl.where(numbers > middle, whole + 1, whole))


@triton.jit
def store_rounded(numbers, at, limit, SIZE: tl.constexpr, PAD: tl.constexpr):
    """Round a row float32 [1, PAD], zeros behind SIZE, and store it at a pointer; limit = SIZE, or 0 to store nothing.

    Its scale follows byte by byte: where heads have an odd size it has no address of its own.
    """
    bits = tl.max(numbers.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)  # ordered as the numbers without their signs
    peak = bits.to(tl.float32, bitcast=True)
    scale = tl.where(peak < ALMOST_ZERO, 0.0, tl.div_rn(peak, MOST)).to(tl.int32, bitcast=True)
    word = (scale + 0x7FFF + ((scale >> 16) & 1)) >> 16  # in bfloat16
    word = tl.where(bits >= INFINITE_BITS, NO_NUMBER, word)
    step = (word << 16).to(tl.float32, bitcast=True)
    inverse = tl.where(step > 0.0, tl.div_rn(1.0, tl.where(step > 0.0, step, 1.0)), 0.0)
    whole = nearest(tl.where(inverse[:, None] > 0.0, numbers * inverse[:, None], 0.0))
    column = tl.arange(0, PAD)[None, :]
    tl.store(at + column, whole.to(tl.int8), mask=column < limit)
    first = tl.arange(0, 1)
    tl.store(at + SIZE + first, (word & 0xFF).to(tl.int8), mask=first < limit)
    tl.store(at + SIZE + 1 + first, (word >> 8).to(tl.int8), mask=first < limit)


@triton.jit
def scaled(numbers, rows, SIZE: tl.constexpr, mask, IS_ROUNDED: tl.constexpr):
    """Return numbers float32 [m, n] times the scales of the rows at pointers [n], where they have some.

    Rows may lie anywhere; those that are masked have a scale of 0.
    """
    if IS_ROUNDED:
        low = tl.load(rows + SIZE, mask=mask, other=0).to(tl.int32) & 0xFF
        high = tl.load(rows + SIZE + 1, mask=mask, other=0).to(tl.int32) & 0xFF
        numbers *= ((high << 24) | (low << 16)).to(tl.float32, bitcast=True)[None, :]
    return numbers
