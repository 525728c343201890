"""The function that transformers calls in every attention layer, and the two contexts that answer it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.settings import AUTO
from dormouse_worker.model.attention.interface import AttentionShape
from dormouse_worker.model.context import AttentionCall, current_context
from dormouse_worker.model.kv_cache import LayerSpec

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


class DiscoveryContext:
    """Finds out what each layer stores and asks for by looking at what it brings; answers zeros."""

    def __init__(self, *, stored: str = AUTO) -> None:
        """`stored`: as what keys and values shall be stored, as `LayerSpec` says."""
        self._stored = stored
        self.layers: dict[int, LayerSpec] = {}
        self.calls: dict[int, AttentionCall] = {}
        self._num_heads: dict[int, int] = {}

    def attend(self, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `ForwardContext`. Raises ModelInvalid if a layer comes twice: later keys would replace earlier ones."""
        if call.layer_idx in self.layers:
            raise ModelInvalid(
                f"layer {call.layer_idx} attends twice, and the paged cache keeps one key for each token"
            )
        self.layers[call.layer_idx] = LayerSpec(key.shape[1], key.shape[2], value.shape[2], key.dtype, self._stored)
        self.calls[call.layer_idx] = call
        self._num_heads[call.layer_idx] = query.shape[1]
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])

    def shapes(self, block_size: int, *, looks_ahead: bool = False) -> tuple[AttentionShape, ...]:
        """Return what the layers ask of a backend, each different shape once, in the order of the layers."""
        shapes = (
            AttentionShape(
                num_heads=self._num_heads[layer],
                num_kv_heads=spec.num_kv_heads,
                key_size=spec.key_size,
                value_size=spec.value_size,
                dtype=spec.dtype,
                block_size=block_size,
                window=self.calls[layer].window,
                has_soft_cap=self.calls[layer].soft_cap is not None,
                has_sinks=self.calls[layer].sinks is not None,
                looks_ahead=looks_ahead,
                is_rounded=spec.is_rounded,
            )
            for layer, spec in sorted(self.layers.items())
        )
        return tuple(dict.fromkeys(shapes))
