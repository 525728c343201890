"""Draws one token per row by inverse CDF over the vocabulary in id order, from one uniform number per row.

The CDF is walked in two steps, blocks of ids and ids within the block: the number picks the block, and where in the
block's share it fell picks the id. This sums float32 weights in pieces (a running sum over the whole vocabulary would
need float64, in memory too).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from dormouse_worker.model.gather import float32_factors, tensor_beside

_BLOCK = 256
_BELOW_ONE = 1 - 2.0**-53


def weigh(scores: torch.Tensor, temperatures: Sequence[float]) -> torch.Tensor:
    """Return probabilities over the likeliest token's, float32, [N, V] padded with 0 to whole blocks.

    Scores are taken relative to the largest before they are divided: no finite temperature above 0 overflows. A row
    without a largest finite score is NaN.
    """
    num_rows, vocab_size = scores.shape
    padded = scores.new_zeros(num_rows, -(-vocab_size // _BLOCK) * _BLOCK)
    weights = padded[:, :vocab_size]
    torch.sub(scores, scores.amax(-1, keepdim=True), out=weights)
    if any(temperature != 1 for temperature in temperatures):
        weights.div_(tensor_beside(float32_factors(temperatures), scores)[:, None])
    weights.exp_()
    return padded


def draw(weights: torch.Tensor, uniforms: npt.NDArray[np.float64]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one id per row of `weigh`'s result, never one of weight 0, and whether the row had weights at all, [N]."""
    blocks = weights.view(len(weights), -1, _BLOCK)
    sums = blocks.sum(-1)
    block, within = _pick(sums, tensor_beside(uniforms, weights)[:, None])
    offset, _ = _pick(blocks[torch.arange(len(blocks), device=weights.device), block.squeeze(-1)], within)
    return (block * _BLOCK + offset).squeeze(-1), sums.sum(-1) > 0


def _pick(weights: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the index of the weight into whose share each number falls, and where in the share: again in [0, 1)."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    targets = uniforms * cumulative[:, -1:]
    # the first whose cumulative weight exceeds the target: right=True never returns one of weight 0
    index = torch.searchsorted(cumulative, targets, right=True).clamp_(max=weights.shape[-1] - 1)
    share = weights.gather(-1, index).double()
    within = (targets - (cumulative.gather(-1, index) - share)) / share
    return index, within.clamp_(0.0, _BELOW_ONE)
