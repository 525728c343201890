"""Whisper's encoder by our kernels, in float32: what a window gets depends on nothing but itself.

A convolution is a linear map of the rows around each row, whose weights lie as they are. Each position sees all others,
so that keys and values are used where the maps put them, as a paged cache of one block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from dormouse_worker.model.attention.native_plan import plan_of_all
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels


class NativeEncoder:
    """Owns nothing but norms in float32, where those of the module have fewer bits."""

    def __init__(self, encoder: Any, kernels: Kernels, linear: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        """`linear` multiplies rows with a map or a convolution of `encoder`, whose weights keep their addresses."""
        self._encoder, self._kernels, self._linear = encoder, kernels, linear
        self._norms = {id(part): _Norm(part) for part in encoder.modules() if isinstance(part, torch.nn.LayerNorm)}

    def __repr__(self) -> str:
        return f"NativeEncoder({len(self._encoder.layers)} layers, {self._kernels!r})"

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """Return float32 [positions, H] of features [mels, frames]."""
        encoder = self._encoder
        hidden = self._gated(encoder.conv1, _around(features.float().T, 1))
        hidden = self._gated(encoder.conv2, _around(hidden, 2))
        hidden += encoder.embed_positions.weight
        plan = plan_of_all(self._kernels, len(hidden), 0, len(hidden))
        for layer in encoder.layers:
            own = layer.self_attn
            normed = self._normed(layer.self_attn_layer_norm, hidden)
            query, key, value = (
                self._linear(part, normed).view(len(normed), own.num_heads, -1)
                for part in (own.q_proj, own.k_proj, own.v_proj)
            )
            mixed = plan.attend(AttentionCall(layer_idx=0, scale=own.scaling), query, LayerCache(key, value))
            hidden += self._linear(own.out_proj, mixed.flatten(1))
            hidden += self._linear(layer.fc2, self._gated(layer.fc1, self._normed(layer.final_layer_norm, hidden)))
        return self._normed(encoder.layer_norm, hidden)

    def _gated(self, part: Any, rows: torch.Tensor) -> torch.Tensor:
        """Return what GELU lets through of a map's products."""
        out = self._linear(part, rows)
        self._kernels.gate(abi.GELU, out.data_ptr(), None, count=out.numel())
        return out

    def _normed(self, part: torch.nn.LayerNorm, rows: torch.Tensor) -> torch.Tensor:
        out, norm = torch.empty_like(rows), self._norms[id(part)].described
        sizes = {"num_rows": len(rows), "columns": rows.shape[1]}
        self._kernels.normalize(rows.data_ptr(), None, norm, out.data_ptr(), **sizes)
        return out


class _Norm:
    """A norm as the kernels read it, and what of it is held for them."""

    def __init__(self, part: torch.nn.LayerNorm) -> None:
        self._held = part.weight.float(), part.bias.float()
        weight, bias = (numbers.data_ptr() for numbers in self._held)
        self.described = abi.LayerNorm(weight, bias, part.eps)

    def __repr__(self) -> str:
        return f"_Norm({len(self._held[0])})"


def _around(rows: torch.Tensor, stride: int) -> torch.Tensor:
    """Return [n / stride, 3 · columns] of rows [n, columns]: each column of the row before, of it, and of the next."""
    return functional.pad(rows, (0, 0, 1, 1)).unfold(0, 3, stride).flatten(1)
