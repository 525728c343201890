"""Log-probabilities in the model's own distribution, as `logprobs` has them in torch: of logits that are arrays.

A row at a time: what is said of it depends on no other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dormouse_api.limits import MAX_LOGPROBS
from dormouse_worker.common.ipc import TokenLogprobs
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.sampling.sampling_row import SamplingRow
from dormouse_worker.model.scratch import Floats


def sampled_logprobs(
    logits: Floats, tokens: Ints, rows: Sequence[SamplingRow], wanted: Ints
) -> dict[int, TokenLogprobs]:
    """Return by row what is asked about the tokens [N] chosen from logits [N, V], of the wanted rows alone."""
    return {
        i: _report(logits[i], int(tokens[i]), count, rows[i].sampling.logprob_token_ids)
        for i in wanted.tolist()
        if (count := rows[i].sampling.logprobs) is not None
    }


def prompt_logprobs(logits: Floats, next_token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """Return the log-probabilities of the T tokens that followed in the prompt, and of the likeliest, 0 to 20.

    Row i of logits [T, V] is the model's output before next_token_ids[i]. Where a row has NaN, or no finite largest
    number, everything said of it is NaN.
    """
    return [_report(row, token_id, num_top) for row, token_id in zip(logits, next_token_ids, strict=True)]


def _report(logits: Floats, token_id: int, num_top: int, named: Sequence[int] = ()) -> TokenLogprobs:
    distribution = _log_softmax(logits)
    ids = _likeliest(distribution)[:num_top] if num_top else np.empty(0, dtype=np.int64)
    of_named = distribution[np.asarray(named, dtype=np.int64)].tolist()
    return TokenLogprobs(float(distribution[token_id]), ids.tolist(), distribution[ids].tolist(), of_named)


def _log_softmax(logits: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        shifted: Floats = logits - logits.max()
        return shifted - np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))


def _likeliest(distribution: Floats) -> Ints:
    """Return the ids of as many as anyone may ask for, the likeliest first, equal ones by id."""
    count = min(MAX_LOGPROBS, len(distribution))
    least = np.partition(distribution, len(distribution) - count)[len(distribution) - count]
    if np.isnan(least):
        return np.arange(count)
    ids = np.flatnonzero(distribution >= least)
    ranked: Ints = ids[np.argsort(-distribution[ids], kind="stable")][:count]
    return ranked
