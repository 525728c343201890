"""Chooses the next tokens of N sequences from their logits [N, V].

Order as in transformers: temperature, top-k, top-p, min-p. Then inverse CDF over the vocabulary in id order, with one
uniform number keyed by (seed, position). No row's result depends on another row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dormouse_worker.ipc import Sampling, TokenLogprobs
from dormouse_worker.model.philox import uniforms


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """How to choose one row's token; `position` counts the output tokens before it."""

    sampling: Sampling
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]

    @property
    def position(self) -> int:
        """Return the number of output tokens before the one to be chosen."""
        return len(self.output_token_ids)


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen token of one row."""

    token_id: int
    logprobs: TokenLogprobs | None


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[Choice]:
    """Return one choice per row of logits [N, V], any floating dtype."""
    raw = logits.float()
    masked = _mask_stop_tokens(raw, rows)
    tokens = masked.argmax(-1)
    random_rows = [i for i, row in enumerate(rows) if row.sampling.temperature > 0]
    if random_rows:
        tokens[random_rows] = _sample_random(masked[random_rows], [rows[i] for i in random_rows])
    logprobs = _logprobs(raw, tokens, rows)
    return [Choice(token, logprobs.get(i)) for i, token in enumerate(tokens.tolist())]


def _mask_stop_tokens(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Forbid the stop tokens of rows that have not reached min_tokens."""
    early = [i for i, row in enumerate(rows) if row.position < row.sampling.min_tokens and row.sampling.stop_token_ids]
    if not early:
        return logits
    masked = logits.clone()
    for i in early:
        masked[i, list(rows[i].sampling.stop_token_ids)] = float("-inf")
    return masked


def _sample_random(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    column = _columns(logits, rows)
    probabilities = (logits / column("temperature")).softmax(-1)
    filtered = [i for i, row in enumerate(rows) if _filters(row.sampling, logits.shape[-1])]
    if filtered:
        chosen = [rows[i] for i in filtered]
        probabilities[filtered] = _filter(probabilities[filtered], chosen)
    cumulative = probabilities.double().cumsum(-1)
    numbers = uniforms([row.sampling.seed for row in rows], [row.position for row in rows])
    targets = torch.as_tensor(numbers, device=logits.device)[:, None] * cumulative[:, -1:]
    # the first id whose cumulative probability exceeds the target; right=True never returns one of probability 0
    return torch.searchsorted(cumulative, targets, right=True).squeeze(-1).clamp_(max=logits.shape[-1] - 1)


def _filters(sampling: Sampling, vocab_size: int) -> bool:
    return 0 < sampling.top_k < vocab_size or sampling.top_p < 1 or sampling.min_p > 0


def _filter(probabilities: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Set what top-k, top-p and min-p exclude to 0; at least the likeliest token stays. Not normalized."""
    column = _columns(probabilities, rows)
    ordered, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(ordered.shape[-1], device=ordered.device)
    top_k = column("top_k")
    ordered = ordered.masked_fill((top_k > 0) & (ranks >= top_k), 0.0)
    before = ordered.cumsum(-1) - ordered
    keep = before < column("top_p") * ordered.sum(-1, keepdim=True)
    keep &= ordered >= column("min_p") * ordered[:, :1]
    keep[:, 0] = True
    return torch.zeros_like(probabilities).scatter_(-1, ids, ordered * keep)


class _columns:  # noqa: N801  reads as a function: column = _columns(like, rows); column("top_p") is [N, 1]
    """Makes [N, 1] tensors of one sampling field each."""

    def __init__(self, like: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
        self._like = like
        self._rows = rows

    def __call__(self, name: str) -> torch.Tensor:
        return self._like.new_tensor([getattr(row.sampling, name) for row in self._rows])[:, None]


def _logprobs(logits: torch.Tensor, tokens: torch.Tensor, rows: Sequence[SamplingRow]) -> dict[int, TokenLogprobs]:
    """Return the log-probabilities in the raw distribution (temperature 1, nothing masked) where they are asked for."""
    wanted = [i for i, row in enumerate(rows) if row.sampling.logprobs is not None]
    if not wanted:
        return {}
    distribution = logits[wanted].log_softmax(-1)
    sampled = distribution.gather(-1, tokens[wanted, None]).squeeze(-1).tolist()
    most = max(rows[i].sampling.logprobs or 0 for i in wanted)
    values, ids = distribution.topk(min(most, distribution.shape[-1]), dim=-1)
    result = {}
    for n, i in enumerate(wanted):
        count = rows[i].sampling.logprobs or 0
        result[i] = TokenLogprobs(sampled[n], ids[n, :count].tolist(), values[n, :count].tolist())
    return result


def prompt_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """Return the log-probabilities of the tokens [T] that followed the rows of logits [T, V], and of the likeliest."""
    distribution = logits.float().log_softmax(-1)
    followed = distribution.gather(-1, torch.tensor(token_ids, device=logits.device)[:, None]).squeeze(-1).tolist()
    values, ids = distribution.topk(min(num_top, distribution.shape[-1]), dim=-1)
    return [TokenLogprobs(*row) for row in zip(followed, ids.tolist(), values.tolist(), strict=True)]
