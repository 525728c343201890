"""How numbers of fewer bits are grouped along a row. Pure."""

from __future__ import annotations

import math

SCALE = "weight_scale"  # how a weight's scales are called beside it
ZERO, MOST = 128, 127  # of 8 bits: what stands for zero, and what numbers reach on both sides of it
MOST_INPUTS = 1 << 16  # of a row, whose products of 8 bits a sum of 32 bits holds
GROUP = 64  # inputs that share a size, of 4 bits
CHUNK, CHUNK_BYTES = 2 * GROUP, GROUP + 2
BLOCK = 64  # columns that a rotation mixes; fewer where the number of columns is no multiple of it


def block_size_of(columns: int) -> int:
    """Return how many columns of so many are mixed: the largest power of two that divides them, at most BLOCK."""
    return math.gcd(columns, BLOCK)
