"""The function that transformers calls in every attention layer, and the two contexts that answer it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from dormouse_worker.errors import ModelInvalid
from dormouse_worker.model.attention.interface import AttentionPlan
from dormouse_worker.model.context import AttentionCall, current_context
from dormouse_worker.model.kv_cache import KVCache, LayerSpec

ATTENTION_NAME = "dormouse_paged"


def register() -> str:
    """Make the function known to transformers; return the name to load models with."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
    return ATTENTION_NAME


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend over the packed batch: query [1, Hq, T, D], key and value [1, Hkv, T, D]; returns [1, T, Hq, Dv]."""
    layer_idx = getattr(module, "layer_idx", None)
    unsupported = _unsupported(module, attention_mask, kwargs)
    if unsupported is not None or layer_idx is None:
        what = unsupported or "attention without a layer index"
        raise ModelInvalid(f"{type(module).__name__} needs {what}, which the paged cache does not offer")
    call = AttentionCall(
        layer_idx=layer_idx,
        scale=float(kwargs.get("scaling") or query.shape[-1] ** -0.5),
        window=kwargs.get("sliding_window"),
        soft_cap=kwargs.get("softcap"),
        sinks=kwargs.get("s_aux"),
    )
    rows = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return current_context().attend(call, *rows).unsqueeze(0), None


def _unsupported(module: torch.nn.Module, mask: torch.Tensor | None, kwargs: dict[str, Any]) -> str | None:
    if not getattr(module, "is_causal", True):
        return "attention that is not causal"
    if mask is not None:
        return "an attention mask of its own"
    if kwargs.get("position_bias") is not None:
        return "a position bias"
    return None


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One forward pass as the layers of one group see it."""

    attention: AttentionPlan
    slot_mapping: torch.Tensor  # [T]


class PagedContext:
    """Answers from the paged cache: stores the pass's keys and values, then attends through the group's plan."""

    def __init__(self, cache: KVCache, plans: Sequence[GroupPlan]) -> None:
        self._cache = cache
        self._plans = plans

    def attend(self, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `ForwardContext`."""
        plan, pool = self._plans[self._cache.group_of(call.layer_idx)], self._cache.layer(call.layer_idx)
        pool.write(plan.slot_mapping, key, value)
        return plan.attention.attend(call, query, pool)


class DiscoveryContext:
    """Finds out what each layer stores and asks for by looking at what it brings; answers zeros."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerSpec] = {}
        self.calls: dict[int, AttentionCall] = {}

    def attend(self, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `ForwardContext`. Raises ModelInvalid if a layer comes twice: later keys would replace earlier ones."""
        if call.layer_idx in self.layers:
            raise ModelInvalid(
                f"layer {call.layer_idx} attends twice, and the paged cache keeps one key for each token"
            )
        self.layers[call.layer_idx] = LayerSpec(key.shape[1], key.shape[2], value.shape[2], key.dtype)
        self.calls[call.layer_idx] = call
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])
