"""Log-probabilities in the model's own distribution: temperature 1, nothing masked, biased or penalized."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dormouse_api.limits import MAX_LOGPROBS
from dormouse_worker.common.ipc import TokenLogprobs
from dormouse_worker.model.sampling.gather import take_rows
from dormouse_worker.model.sampling.sampling_row import SamplingRow

SLICE_ELEMENTS = 1 << 22  # of prompt logits in float32 at once; with their distribution 32 MiB


def sampled_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, rows: Sequence[SamplingRow]
) -> dict[int, TokenLogprobs]:
    """Return by row the log-probabilities of the chosen tokens [N] in logits [N, V], where they are asked for."""
    wanted = [i for i, row in enumerate(rows) if row.sampling.logprobs is not None]
    if not wanted:
        return {}
    counts = [rows[i].sampling.logprobs or 0 for i in wanted]
    named = [rows[i].sampling.logprob_token_ids for i in wanted]
    told = _report(take_rows(logits, wanted), take_rows(tokens, wanted), counts, named)
    return dict(zip(wanted, told, strict=True))


def prompt_logprobs(
    logits: torch.Tensor, next_token_ids: Sequence[int], num_top: int, *, slice_elements: int = SLICE_ELEMENTS
) -> list[TokenLogprobs]:
    """Return the log-probabilities of the T tokens that followed in the prompt, and of the likeliest, 0 to 20.

    logits [T, V], any floating dtype; row i is the model's output before next_token_ids[i]. Worked through in slices,
    so that only `slice_elements` of them (but at least one row) are in float32 at once. T = 0 is an empty list. Where a
    row has NaN, or no finite largest number, everything said of it is NaN.
    """
    num_rows = max(1, slice_elements // logits.shape[-1])
    result: list[TokenLogprobs] = []
    for start in range(0, len(next_token_ids), num_rows):
        tokens = torch.tensor(next_token_ids[start : start + num_rows], device=logits.device)
        result += _report(logits[start : start + num_rows], tokens, [num_top] * len(tokens))
    return result


def _report(
    logits: torch.Tensor, tokens: torch.Tensor, counts: Sequence[int], named: Sequence[Sequence[int]] = ()
) -> list[TokenLogprobs]:
    distribution = logits.log_softmax(-1, dtype=torch.float32)
    sampled = distribution.gather(-1, tokens[:, None]).squeeze(-1).tolist()
    ids, values = _likeliest(distribution) if any(counts) else ([[]] * len(counts), [[]] * len(counts))
    by_name = _of_named(distribution, named) if any(named) else [[]] * len(counts)
    return [
        TokenLogprobs(sampled[i], ids[i][:count], values[i][:count], by_name[i][:])  # copies: no two share a list
        for i, count in enumerate(counts)
    ]


def _of_named(distribution: torch.Tensor, named: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return of each row [N, V] the values of its ids. One step for all rows, the shorter ones filled up."""
    most = max(map(len, named))
    ids = torch.tensor([[*row, *[0] * (most - len(row))] for row in named], device=distribution.device)
    values = distribution.gather(-1, ids).tolist()
    return [row[: len(ids_of_row)] for row, ids_of_row in zip(values, named, strict=True)]


def _likeliest(distribution: torch.Tensor) -> tuple[list[list[int]], list[list[float]]]:
    """Return the likeliest ids and their values, equal ones by id.

    Always as many as anyone may ask for: which of equal ones `topk` takes depends on how many it is asked for, and
    with it a row would depend on its neighbours' wishes.
    """
    values, ids = distribution.topk(min(MAX_LOGPROBS, distribution.shape[-1]), dim=-1)
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, order).tolist(), values.tolist()
