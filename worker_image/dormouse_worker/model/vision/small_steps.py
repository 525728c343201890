"""Large operations of torch as several small ones, over rows that know nothing of each other.

Who computes in pieces can stop between them, however large an image is. Libraries may round differently where there are
fewer rows, so it depends on sizes alone, and never on whether somebody stops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Function = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class Most:
    """What one operation may take."""

    operations: int = 1 << 28  # of floating point, in products: 1.5 ms on two cores
    attention: int = 1 << 26  # of floating point, where torch makes a quarter as many in that time
    numbers: int = 1 << 19  # where each is looked at once


class SmallSteps(TorchFunctionMode):
    """Cuts linear maps, attention and functions of single rows, in the thread that entered it."""

    def __init__(self, most: Most | None = None) -> None:
        super().__init__()
        self._most = most or Most()

    def __torch_function__(
        self, function: Function, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        cut = _CUTS.get(function)
        if cut is None:
            return function(*args, **(kwargs or {}))
        return cut(self._most, function, args, kwargs or {})


def _linear(most: Most, function: Function, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor:
    num_steps = math.ceil(2 * args[0].numel() * args[1].shape[0] / most.operations)
    return _by_rows(num_steps, function, args, kwargs)


def _row_wise(most: Most, function: Function, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor:
    return _by_rows(math.ceil(args[0].numel() / most.numbers), function, args, kwargs)


def _by_rows(num_steps: int, function: Function, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor:
    rows, *rest = args
    if num_steps < 2:
        return function(*args, **kwargs)
    parts = [function(part, *rest, **kwargs) for part in rows.reshape(-1, rows.shape[-1]).chunk(num_steps)]
    return torch.cat(parts).reshape(*rows.shape[:-1], -1)


def _attention(most: Most, function: Function, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """Cut [B, H, L, D] by pictures, those by heads, and these by queries."""
    query, key = args[:2]
    num_steps = math.ceil(4 * query.numel() * key.shape[-2] / most.attention)
    if num_steps < 2 or len(args) != 3 or query.shape[:-2] != key.shape[:-2]:
        return function(*args, **kwargs)
    if query.shape[:2] == (1, 1):
        return _by_queries(num_steps, function, args, kwargs)
    dim = 0 if len(query) > 1 else 1
    parts = [part.chunk(num_steps, dim) for part in args]
    mask = kwargs.get("attn_mask")
    masks = mask.chunk(num_steps, dim) if mask is not None and mask.shape[dim] > 1 else [mask] * len(parts[0])
    steps = zip(*parts, masks, strict=True)
    return torch.cat(
        [_attention(most, function, step, {**kwargs, "attn_mask": of_step}) for *step, of_step in steps], dim
    )


def _by_queries(num_steps: int, function: Function, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """Cut one head's attention where every query sees what its mask says alone."""
    if kwargs.get("is_causal"):
        return function(*args, **kwargs)
    query, *seen = args
    parts, mask = query.chunk(num_steps, -2), kwargs.get("attn_mask")
    masks = mask.chunk(num_steps, -2) if mask is not None and mask.shape[-2] > 1 else [mask] * len(parts)
    steps = zip(parts, masks, strict=True)
    return torch.cat([function(part, *seen, **{**kwargs, "attn_mask": of_part}) for part, of_part in steps], -2)


_CUTS: Mapping[Any, Callable[[Most, Function, Any, Mapping[str, Any]], torch.Tensor]] = {
    functional.linear: _linear,
    functional.scaled_dot_product_attention: _attention,
    functional.gelu: _row_wise,
    functional.silu: _row_wise,
    functional.layer_norm: _row_wise,  # of the last dimension, as encoders have it
}
