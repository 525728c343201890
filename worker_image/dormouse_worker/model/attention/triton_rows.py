"""Rows of 8 bits as Triton's functions: what `cache_rows` defines, to the last bit. Called by `triton_kernels`.

Products that are rounded never meet a sum here: compilers would join the two, and the bits would be others.
"""

from __future__ import annotations

import triton
import triton.language as tl

ALMOST_ZERO = tl.constexpr(1e-30)
MOST, MOST_FLOAT = tl.constexpr(127.0), tl.constexpr(448.0)
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
def nearest_float(numbers):
    """Return what stands for the nearest floats of 8 bits, e4m3, int32; of two the even one. None is above 448."""
    bits = numbers.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    large = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    small = nearest(tl.abs(numbers) * 512.0)  # below 2^-6 all steps are alike
    return tl.where(size < (121 << 23), small, large) | ((bits >> 24) & 0x80)


@triton.jit
def numbers_of(stored, IS_FLOAT: tl.constexpr):
    """Return what is stored, but floats of 8 bits, stored as int8, as float32: older devices know no such floats."""
    numbers = stored
    if IS_FLOAT:
        size = stored.to(tl.int32) & 0x7F
        large = ((size << 20) + (120 << 23)).to(tl.float32, bitcast=True)
        numbers = tl.where(size < 8, size.to(tl.float32) * 0.001953125, large)
        numbers = tl.where(stored < 0, -numbers, numbers)
    return numbers


@triton.jit
def store_rounded(numbers, at, limit, SIZE: tl.constexpr, PAD: tl.constexpr, IS_FLOAT: tl.constexpr):
    """Round a row float32 [1, PAD], zeros behind SIZE, and store it at a pointer; limit = SIZE, or 0 to store nothing.

    Its scale follows byte by byte: where heads have an odd size it has no address of its own.
    """
    bits = tl.max(numbers.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)  # ordered as the numbers without their signs
    peak = bits.to(tl.float32, bitcast=True)
    scale = tl.where(peak < ALMOST_ZERO, 0.0, tl.div_rn(peak, MOST_FLOAT if IS_FLOAT else MOST)).to(
        tl.int32, bitcast=True
    )
    word = (scale + 0x7FFF + ((scale >> 16) & 1)) >> 16  # in bfloat16
    word = tl.where(bits >= INFINITE_BITS, NO_NUMBER, word)
    step = (word << 16).to(tl.float32, bitcast=True)
    inverse = tl.where(step > 0.0, tl.div_rn(1.0, tl.where(step > 0.0, step, 1.0)), 0.0)
    numbers = tl.where(inverse[:, None] > 0.0, numbers * inverse[:, None], 0.0)
    stored = nearest_float(numbers) if IS_FLOAT else nearest(numbers)
    column = tl.arange(0, PAD)[None, :]
    tl.store(at + column, stored.to(tl.int8), mask=column < limit)
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
