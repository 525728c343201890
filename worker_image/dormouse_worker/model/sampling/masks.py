"""What a row must not say: grammar, allowed tokens, bad words, stop tokens before min_tokens; and the logit bias.

All functions change scores [N, V] (float32, contiguous) in place. Every mask follows one rule: where it would leave a
row without any token it is not applied to that row. As they come in this order, a later promise yields to an earlier
one: with only stop tokens allowed, min_tokens yields. In a row that a grammar binds only min_tokens yields: such a row
may be left without a token, and who asked for it hears so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dormouse_worker.model.sampling.gather import flat_cells, take_rows
from dormouse_worker.model.sampling.rules import FORBIDDEN, bad_word_endings
from dormouse_worker.model.sampling.sampling_row import SamplingRow
from dormouse_worker.model.to_device import row_index, tensor_beside

_RowIds = tuple[int, Sequence[int]]  # a row's number and token ids


def keep_to_grammar(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Forbid what the grammars of rows that have one do not allow."""
    bound = [(i, row.allowed) for i, row in enumerate(rows) if row.allowed is not None]
    if not bound:
        return
    numbers = [i for i, _ in bound]
    bits = tensor_beside(np.stack([allowed for _, allowed in bound]), scores)
    before = take_rows(scores, numbers)
    after = before.masked_fill(~_spread(bits, scores.shape[-1]), FORBIDDEN)
    scores[row_index(numbers, scores)] = after


def _spread(bits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return for packed bits [N, B] a bool for each token, [N, V]; False for tokens that have no bit."""
    each = (bits[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=bits.device)) & 1
    flat = each.flatten(1).bool()
    return torch.nn.functional.pad(flat, (0, max(0, vocab_size - flat.shape[1])))[:, :vocab_size]


def allow_only(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Forbid all tokens but `allowed_token_ids`, where there are any."""
    allowed: list[_RowIds] = [
        (i, row.sampling.allowed_token_ids) for i, row in enumerate(rows) if row.sampling.allowed_token_ids
    ]
    if not allowed:
        return
    numbers = [i for i, _ in allowed]
    before = take_rows(scores, numbers)
    after = torch.full_like(before, FORBIDDEN)
    cells = flat_cells(((n, ids) for n, (_, ids) in enumerate(allowed)), scores.shape[-1])
    within = tensor_beside(cells, scores)
    after.view(-1)[within] = before.reshape(-1)[within]
    is_bound = _bound_ones([rows[i] for i in numbers], scores)
    scores[numbers] = torch.where(_has_token(after) | is_bound, after, before)


def forbid_bad_words(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Forbid the tokens that would complete a bad word."""
    _forbid(
        scores,
        [
            (i, bad_word_endings(row.sampling.bad_words_token_ids, row.output_token_ids))
            for i, row in enumerate(rows)
            if row.sampling.bad_words_token_ids
        ],
        never_yields=[row.allowed is not None for row in rows],
    )


def forbid_early_stops(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Forbid the stop tokens of rows that have not reached min_tokens."""
    _forbid(
        scores,
        [(i, row.sampling.stop_token_ids) for i, row in enumerate(rows) if row.position < row.sampling.min_tokens],
    )


def add_bias(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Add `logit_bias`; what is forbidden stays so."""
    vocab_size = scores.shape[-1]
    biases = [
        (i, token_id, bias)
        for i, row in enumerate(rows)
        for token_id, bias in row.sampling.logit_bias.items()
        if 0 <= token_id < vocab_size
    ]
    if biases:
        cells = torch.tensor([i * vocab_size + token_id for i, token_id, _ in biases], device=scores.device)
        scores.view(-1)[cells] += scores.new_tensor([bias for _, _, bias in biases])


def _bound_ones(rows: Sequence[SamplingRow], scores: torch.Tensor) -> torch.Tensor:
    """Return whether a grammar binds a row, [N, 1]."""
    return tensor_beside(np.array([[row.allowed is not None] for row in rows]), scores)


def _forbid(scores: torch.Tensor, forbidden: Sequence[_RowIds], never_yields: Sequence[bool] = ()) -> None:
    numbers = [i for i, ids in forbidden if ids]
    if not numbers:
        return
    flat = scores.view(-1)
    cells = tensor_beside(flat_cells(forbidden, scores.shape[-1]), scores)
    before = flat[cells]
    flat[cells] = FORBIDDEN
    has_token = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    has_token[numbers] = _has_token(take_rows(scores, numbers)).squeeze(-1)
    if any(never_yields):
        has_token |= tensor_beside(np.array(never_yields), scores)
    flat[cells] = before.masked_fill(has_token[cells // scores.shape[-1]], FORBIDDEN)


def _has_token(scores: torch.Tensor) -> torch.Tensor:
    """Return whether a row has a token that is not forbidden, [N, 1]."""
    return scores.amax(-1, keepdim=True) > FORBIDDEN
