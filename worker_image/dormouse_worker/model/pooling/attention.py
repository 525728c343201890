"""Attention within each sequence of a packed pass, for models whose tokens may see what follows them.

    rows    | text 0 | text 1 |   text 2   |        sorted by length: neighbours of equal length attend as one batch

A layer's window counts as transformers' masks do: a token sees those less than a window away, before it, or on both
sides where the layer is not causal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.model.context import AttentionCall, current_context

ATTENTION_NAME = "dormouse_packed"


@dataclass(frozen=True, slots=True)
class Run:
    """Sequences of one length that lie next to each other in the rows [start, start + count × length)."""

    start: int
    length: int
    count: int


def runs_of(lengths: Sequence[int]) -> tuple[Run, ...]:
    """Return the runs of a packed pass."""
    runs, start = [], 0
    for length, group in groupby(lengths):
        count = len(list(group))
        runs.append(Run(start, length, count))
        start += length * count
    return tuple(runs)


class PackedContext:
    """Answers the attention of one pass over whole sequences."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.num_calls = 0
        self._runs = runs_of(lengths)
        self._seen: dict[tuple[int, int, bool], torch.Tensor] = {}

    def __repr__(self) -> str:
        return f"PackedContext({len(self._runs)} runs, {self.num_calls} calls)"

    def attend(self, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `ForwardContext`: causal, as every layer of a model that generates."""
        return self.attend_within(call, query, key, value, is_causal=True)

    def attend_within(
        self, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool
    ) -> torch.Tensor:
        """Take query [T, Hq, D], key and value [T, Hkv, D]; return [T, Hq, D]."""
        self.num_calls += 1
        return torch.cat(list(self._parts(call, (query, key, value), is_causal=is_causal)))

    def _parts(self, call: AttentionCall, rows: tuple[torch.Tensor, ...], *, is_causal: bool) -> Iterator[torch.Tensor]:
        has_groups = rows[0].shape[1] != rows[1].shape[1]
        for run in self._runs:
            end = run.start + run.length * run.count
            query, key, value = (
                part[run.start : end].view(run.count, run.length, *part.shape[1:]).transpose(1, 2) for part in rows
            )
            is_cut = call.window is not None and call.window < run.length
            attended = scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=self._mask(run.length, call.window or 0, is_causal, query.device) if is_cut else None,
                is_causal=is_causal and not is_cut and run.length > 1,
                scale=call.scale,
                enable_gqa=has_groups,
            )
            yield attended.transpose(1, 2).flatten(0, 1)

    def _mask(self, length: int, window: int, is_causal: bool, device: torch.device) -> torch.Tensor:  # noqa: FBT001  a key
        """Return who sees whom, [length, length]; layers share it."""
        key = (length, window, is_causal)
        if key not in self._seen:
            places = torch.arange(length, device=device)
            before = places[:, None] - places
            self._seen[key] = (before >= 0 if is_causal else before > -window) & (before < window)
        return self._seen[key]


def register() -> str:
    """Make the function known to transformers; return the name to load models with."""
    AttentionInterface.register(ATTENTION_NAME, packed_attention)
    return ATTENTION_NAME


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend over a packed pass: query [1, Hq, T, D], key and value [1, Hkv, T, D]; returns [1, T, Hq, D]."""
    context = current_context()
    assert isinstance(context, PackedContext), "models are loaded with this attention for packed passes only"
    if unsupported := _unsupported(attention_mask, kwargs):
        raise ModelInvalid(f"{type(module).__name__} needs {unsupported}, which packed passes do not offer")
    said = kwargs.get("is_causal")
    call = AttentionCall(
        layer_idx=getattr(module, "layer_idx", None) or 0,
        scale=float(kwargs.get("scaling") or query.shape[-1] ** -0.5),
        window=kwargs.get("sliding_window"),
    )
    rows = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    is_causal = bool(getattr(module, "is_causal", True) if said is None else said)
    return context.attend_within(call, *rows, is_causal=is_causal).unsqueeze(0), None


def _unsupported(mask: torch.Tensor | None, kwargs: dict[str, Any]) -> str | None:
    if mask is not None:
        return "an attention mask of its own"
    names = {"position_bias": "a position bias", "softcap": "capped scores", "s_aux": "attention sinks"}
    return next((words for name, words in names.items() if kwargs.get(name) is not None), None)
