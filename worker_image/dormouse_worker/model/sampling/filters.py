"""Top-k, top-p and min-p as one number per row: the least weight that stays.

The order is that of transformers: top-k, then top-p over what top-k left, then min-p. Each keeps the likeliest tokens
and so all three together are one threshold. Tokens as likely as the last one kept stay too, and top-p adds up masses,
which are whole numbers; so the result depends on no order, hence on no device (transformers and vLLM: the same for
top-k).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dormouse_worker.common.ipc import Sampling
from dormouse_worker.model.sampling.exact_softmax import masses_of
from dormouse_worker.model.sampling.gather import take_rows
from dormouse_worker.model.to_device import row_index, tensor_beside


def least_weights(weights: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor | None:
    """Return the least weight that stays in each row, [N, 1], at most 1; None where no row filters.

    weights [N, V] are probabilities over the likeliest token's, which has 1.
    """
    vocab_size = weights.shape[-1]
    cut = [i for i, sampling in enumerate(samplings) if 0 < sampling.top_k < vocab_size or sampling.top_p < 1]
    least = [sampling.min_p for sampling in samplings]
    if not cut and not any(least):
        return None
    thresholds = tensor_beside(np.array(least, dtype=np.float32), weights)[:, None]
    if cut:
        least_of_cut = _least_of_top_k_and_top_p(take_rows(weights, cut), [samplings[i] for i in cut])
        where = row_index(cut, weights)
        thresholds[where] = torch.maximum(thresholds[where], least_of_cut)
    return thresholds


def _least_of_top_k_and_top_p(weights: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    vocab_size = weights.shape[-1]
    num_cut = [vocab_size - sampling.top_k if 0 < sampling.top_k < vocab_size else 0 for sampling in samplings]
    ascending = _sort(weights)
    kth = ascending.gather(-1, row_index(num_cut, weights)[:, None])
    mass = masses_of(ascending).masked_fill_(ascending < kth, 0).cumsum(-1)
    total = mass[:, -1:]
    shares = np.array([sampling.top_p for sampling in samplings], dtype=np.float64)
    need = (total.double() * tensor_beside(shares, weights)[:, None]).long().clamp_(min=1)
    # the first token, from the unlikeliest on, for which the likelier ones do not reach what is needed
    return ascending.gather(-1, torch.searchsorted(mass, total - need, right=True))


def _sort(weights: torch.Tensor) -> torch.Tensor:
    if weights.device.type == "cpu":  # torch carries the indices along, which takes several times as long
        return torch.from_numpy(np.sort(weights.numpy(), axis=-1))
    return weights.sort(dim=-1).values
