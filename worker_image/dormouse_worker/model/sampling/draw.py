"""Draws one token per row by inverse CDF over the vocabulary in id order, from one uniform number per row.

The CDF is one of masses, whole numbers: nothing depends on the order in which they are added up.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from dormouse_worker.model.sampling.exact_softmax import BLOCK, masses_of
from dormouse_worker.model.to_device import tensor_beside


def draw(weights: torch.Tensor, uniforms: npt.NDArray[np.float64]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one id per row of `weigh`'s result, never one without mass, and whether the row had any at all, [N]."""
    blocks = masses_of(weights).view(len(weights), -1, BLOCK)
    cumulative = blocks.sum(-1).cumsum(-1)
    total = cumulative[:, -1:]
    targets = (tensor_beside(uniforms, weights)[:, None] * total.double()).long().minimum(total - 1)
    number = _first_above(cumulative, targets)
    within = blocks[torch.arange(len(blocks), device=weights.device), number.squeeze(-1)].cumsum(-1)
    before = cumulative.gather(-1, number) - within[:, -1:]
    offset = _first_above(within, targets - before)
    return (number * BLOCK + offset).squeeze(-1), total.squeeze(-1) > 0


def _first_above(cumulative: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the index of the first that exceeds the target: right=True never returns one that adds nothing."""
    return torch.searchsorted(cumulative, targets, right=True).clamp_(max=cumulative.shape[-1] - 1)
