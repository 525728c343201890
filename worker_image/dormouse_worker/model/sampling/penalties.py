"""The penalties on tokens that a sequence has already.

Repetition (Keskar et al., 'CTRL', 2019) counts prompt and output, presence and frequency (OpenAI's) the output only;
so in vLLM. The functions change scores [N, V] (float32, contiguous) in place. Forbidden tokens stay forbidden and no
other becomes infinite, however far the factors go.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dormouse_worker.model.sampling.factors import float32_factors
from dormouse_worker.model.sampling.gather import flat_cells
from dormouse_worker.model.sampling.sampling_row import SamplingRow, TokenIds
from dormouse_worker.model.to_device import tensor_beside

_LARGEST = torch.finfo(torch.float32).max


def penalize_repetition(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Divide the positive scores of seen tokens by the penalty and multiply the negative ones."""
    seen = [(i, ids) for i, row in enumerate(rows) for ids in _seen(row)]
    if not seen:
        return
    vocab_size = scores.shape[-1]
    cells = flat_cells(seen, vocab_size)  # a token seen twice stands here twice, and both times gets the same new score
    factors = float32_factors([row.sampling.repetition_penalty for row in rows])[cells // vocab_size]
    factor = tensor_beside(factors, scores)
    flat, place = scores.view(-1), tensor_beside(cells, scores)
    before = flat[place]
    after = torch.where(before > 0, before / factor, before * factor).clamp_(-_LARGEST, _LARGEST)
    flat[place] = torch.where(before.isinf(), before, after)


def penalize_presence_and_frequency(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Take the presence penalty off every token of the output, the frequency penalty once for each time."""
    outputs = [
        (i, row.output_token_ids)
        for i, row in enumerate(rows)
        if row.sampling.presence_penalty or row.sampling.frequency_penalty
    ]
    if not outputs:
        return
    cells, counts = np.unique(flat_cells(outputs, scores.shape[-1]), return_counts=True)
    row_of_cell = cells // scores.shape[-1]
    presence = np.array([row.sampling.presence_penalty for row in rows])[row_of_cell]
    frequency = np.array([row.sampling.frequency_penalty for row in rows])[row_of_cell]
    penalty = (presence + frequency * counts).astype(np.float32)
    scores.view(-1)[tensor_beside(cells, scores)] -= tensor_beside(penalty, scores)


def _seen(row: SamplingRow) -> tuple[TokenIds, ...]:
    return (row.prompt_token_ids, row.output_token_ids) if row.sampling.repetition_penalty != 1 else ()
