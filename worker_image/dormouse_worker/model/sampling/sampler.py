"""Chooses the next tokens of N sequences from their logits [N, V]. No row's result depends on another row.

The order, in which a parameter sees what those before it have done:

1. the grammar, allowed_token_ids, bad words, stop tokens before min_tokens, logit_bias (`masks`)
2. penalties: repetition, then presence and frequency (`penalties`)
3. temperature; 0 takes the likeliest here, the lowest id of equal ones
4. top-k, top-p, min-p (`filters`)
5. inverse CDF with one uniform number keyed by (seed, choice index, position) (`draw`, `philox`)

From 3 on every number is the same on every device (`exact_softmax`), and so is the token; on a processor our kernels
compute 2 to 5 (`native_sampler`).

1 to 3 are in the order of vLLM's V1 sampler, 4 in the order of transformers' `generate` (vLLM takes min-p first).
Log-probabilities come from the logits as they were (`logprobs`), as vLLM's `raw_logprobs`.

A row is never left without a token: a mask that would do so is not applied (`masks`); but for rows that a grammar
binds, which tell that nothing is left (`Choice.is_possible`). Where the logits themselves have
no finite maximum (all -inf, or inf or NaN among them) the row is chosen as if greedy: the likeliest, or the first NaN.
Then the token's own logit is not finite, which tells: its request ends with an error (`Choice.is_finite`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dormouse_worker.common.sampling import has_edits
from dormouse_worker.model.sampling.draw import draw
from dormouse_worker.model.sampling.exact_softmax import weigh
from dormouse_worker.model.sampling.filters import least_weights
from dormouse_worker.model.sampling.gather import take_rows
from dormouse_worker.model.sampling.logprobs import prompt_logprobs, sampled_logprobs
from dormouse_worker.model.sampling.masks import (
    add_bias,
    allow_only,
    forbid_bad_words,
    forbid_early_stops,
    keep_to_grammar,
)
from dormouse_worker.model.sampling.native_sampler import NativeSampler, describe_draws
from dormouse_worker.model.sampling.penalties import penalize_presence_and_frequency, penalize_repetition
from dormouse_worker.model.sampling.philox import uniforms
from dormouse_worker.model.sampling.rules import FORBIDDEN
from dormouse_worker.model.sampling.sampling_row import Choice, SamplingRow
from dormouse_worker.model.to_device import row_index

__all__ = ["Choice", "SamplingRow", "are_chosen_finite", "choose", "prompt_logprobs", "sample"]

_EDITS = (
    keep_to_grammar,
    allow_only,
    forbid_bad_words,
    forbid_early_stops,
    add_bias,
    penalize_repetition,
    penalize_presence_and_frequency,
)


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow], native: NativeSampler | None = None) -> list[Choice]:
    """Return one choice per row of logits [N, V], any floating dtype; they are not changed.

    A native sampler takes over 3 to 5, on a processor: faster, and with the same tokens.
    """
    raw = logits.float()
    scores = _edit(raw, rows)
    tokens = choose(scores, rows) if native is None else _choose_natively(native, scores, rows)
    logprobs = sampled_logprobs(raw, tokens, rows)
    finite = (are_chosen_finite(raw, tokens) if scores is raw else raw.amax(-1).isfinite()).tolist()
    return [
        Choice(token, logprobs.get(i), finite[i], _is_possible(scores, rows, i, token))
        for i, token in enumerate(tokens.tolist())
    ]


def are_chosen_finite(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return for tokens [N], chosen from scores [N, V], whether their scores are finite, bool [N].

    So it is where the row's largest is finite and none is NaN, and never else: see `choose`.
    """
    return scores.gather(-1, tokens[:, None]).squeeze(-1).isfinite()


def _is_possible(scores: torch.Tensor, rows: Sequence[SamplingRow], i: int, token: int) -> bool:
    return rows[i].allowed is None or float(scores[i, token]) != FORBIDDEN


def _edit(raw: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Return the scores to choose from; `raw` itself where no row changes its own."""
    edited = [i for i, row in enumerate(rows) if has_edits(row.sampling, row.position)]
    if not edited:
        return raw
    scores = raw.clone(memory_format=torch.contiguous_format)
    part = take_rows(scores, edited)
    for edit in _EDITS:
        edit(part, [rows[i] for i in edited])
    if part is not scores:
        scores[edited] = part
    return scores


def choose(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Return the tokens [N] of scores [N, V], float32, by 3 to 5. Nothing is waited for that a GPU does."""
    random_rows = [i for i, row in enumerate(rows) if row.sampling.temperature > 0]
    if random_rows and len(random_rows) == len(rows):
        return _choose_randomly(scores, rows)
    tokens = _likeliest(scores)
    if random_rows:
        where = row_index(random_rows, scores)
        tokens[where] = _choose_randomly(scores[where], [rows[i] for i in random_rows])
    return tokens


def _choose_natively(native: NativeSampler, scores: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    nowhere = [0] * len(rows)  # the penalties are in the scores already
    draws = describe_draws([row.sampling for row in rows], nowhere, nowhere)
    positions = np.array([row.position for row in rows], dtype=np.int64)
    return torch.from_numpy(native.choose(scores.contiguous().numpy(), draws, positions))


def _choose_randomly(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    samplings = [row.sampling for row in rows]
    weights = weigh(scores, [sampling.temperature for sampling in samplings])
    least = least_weights(weights[:, : scores.shape[-1]], samplings)
    if least is not None:
        weights.masked_fill_(weights < least, 0.0)
    numbers = uniforms(
        [sampling.seed for sampling in samplings],
        [row.position for row in rows],
        [sampling.choice_index for sampling in samplings],
    )
    tokens, has_weights = draw(weights, numbers)
    if scores.device.type == "cpu" and bool(has_weights.all()):  # on a GPU to ask would be to wait
        return tokens
    return torch.where(has_weights, tokens, _likeliest(scores))


def _likeliest(scores: torch.Tensor) -> torch.Tensor:
    if scores.device.type == "cpu":  # ten times as fast as torch's
        return torch.from_numpy(scores.numpy().argmax(-1))
    return scores.argmax(-1)
