"""How likely tokens are, in numbers that are the same on every device, whatever computes them.

A weight is a token's probability over the likeliest one's: 2 to the power of (score - largest) · log2(e) / temperature.
Every operation on the way is one of float32 that rounds once (no fused multiply-add, no library's exponential), so that
torch on any device and `native/src/weights.h` give the same bits. A weight's mass is the whole number of 2⁻⁴⁰ in it:
sums of whole numbers do not depend on their order. A sequence that moves from a GPU to a processor goes on the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dormouse_worker.model.sampling.factors import factors_of
from dormouse_worker.model.to_device import tensor_beside

BLOCK = 256  # ids whose masses are added up together
_MASS = 2.0**40  # of the likeliest token; a vocabulary of 2²² tokens adds up to less than 2⁶³
_FLOOR = -42.0  # a weight of 2⁻⁴² has no mass
_ROUNDS = 12582912.0  # 1.5 · 2²³: what is added to it becomes whole, and stands in the last bits
_MANTISSA_BITS = 23
# 2ᶠ for |f| ≤ ½ within 1.7e-7: the coefficients of f⁵ to f, float32 numbers, then 1
_POLYNOMIAL = tuple(
    map(float.fromhex, ("0x1.5bba08p-10", "0x1.3cea8ap-7", "0x1.c6b754p-5", "0x1.ebf9bcp-3", "0x1.62e42ap-1", "0x1p0"))
)


def weigh(scores: torch.Tensor, temperatures: Sequence[float]) -> torch.Tensor:
    """Return the weights of scores [N, V], float32, [N, V] padded with 0 to whole blocks.

    Scores are taken relative to the largest before they are multiplied: no finite temperature above 0 overflows. A row
    without a largest finite score has no mass.
    """
    num_rows, vocab_size = scores.shape
    padded = scores.new_zeros(num_rows, -(-vocab_size // BLOCK) * BLOCK)
    powers = padded[:, :vocab_size]
    torch.sub(scores, scores.amax(-1, keepdim=True), out=powers)
    powers.mul_(tensor_beside(factors_of(temperatures), scores)[:, None])
    _raise_two(powers.nan_to_num_(nan=_FLOOR).clamp_(min=_FLOOR))
    return padded


def masses_of(weights: torch.Tensor) -> torch.Tensor:
    """Return the masses of weights, int64."""
    return (weights * _MASS).long()


def _raise_two(powers: torch.Tensor) -> None:
    """Set each to two to the power of it, in place."""
    rounded = powers + _ROUNDS
    powers.sub_(rounded - _ROUNDS)
    first, *rest = _POLYNOMIAL
    result = powers * first
    for coefficient in rest[:-1]:
        result.add_(coefficient).mul_(powers)
    result.add_(rest[-1])
    whole = rounded.view(torch.int32).bitwise_left_shift_(_MANTISSA_BITS)
    powers.copy_(result.view(torch.int32).add_(whole).view(torch.float32))
