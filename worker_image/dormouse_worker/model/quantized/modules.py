"""Modules in the place of transformers', whose weights are of fewer bits; made plain in each pass, on any device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dormouse_worker.model.quantized import mxfp4
from dormouse_worker.model.quantized.blocks import SCALE
from dormouse_worker.model.quantized.formats import Format
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels, Missing

EXPERT_MAPS = ("gate_up_proj", "down_proj")


def stand_in(shape: Sequence[int], dtype: torch.dtype) -> nn.Parameter:
    """Return a parameter that takes no memory and says what is needed."""
    return nn.Parameter(torch.zeros((), dtype=dtype).expand(*shape), requires_grad=False)


class QuantizedLinear(nn.Module):
    """A linear map [out, in] of fewer bits."""

    def __init__(self, plain: nn.Linear, stored_as: Format) -> None:
        """Take the place of a plain map, whose bias stays."""
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.format = stored_as
        self.weight = stand_in((self.out_features, stored_as.row_bytes(self.in_features)), torch.uint8)
        self.weight_scale = stand_in((self.out_features,), torch.float32)
        self.bias = plain.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [..., out] for [..., in]."""
        return self.format.multiply(rows, self.weight, self.weight_scale, self.bias)

    def operands(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what is to be multiplied for rows [..., in]; see `Format`."""
        return self.format.operands(rows, self.weight, self.weight_scale)


class QuantizedEmbedding(nn.Module):
    """An embedding that shares its numbers with the head."""

    def __init__(self, plain: nn.Embedding, head: QuantizedLinear) -> None:
        """Take the place of a plain one that is tied to what is now `head`."""
        super().__init__()
        self.num_embeddings, self.embedding_dim = plain.num_embeddings, plain.embedding_dim
        self.padding_idx = plain.padding_idx
        self.dtype, self.format = plain.weight.dtype, head.format
        self.weight, self.weight_scale = head.weight, head.weight_scale

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return [..., size] for ids [...]."""
        ids = token_ids.reshape(-1)
        found = self.format.dequantize(self.weight[ids], self.weight_scale[ids], self.embedding_dim)
        return found.to(self.dtype).view(*token_ids.shape, -1)


class PackedExperts(nn.Module):
    """gpt-oss's experts of one layer, with weights in MXFP4; torch makes one plain for the time of its product.

    Sums have the order of transformers' `grouped_mm`: each row's experts in the order in which it chose them.
    """

    def __init__(self, plain: Any) -> None:
        """Take the place of plain ones [experts, in, out], whose biases stay."""
        super().__init__()
        self._apply_gate = type(plain)._apply_gate.__get__(self)  # noqa: SLF001  which reads the two numbers
        self.alpha, self.limit = plain.alpha, plain.limit
        self.kernels: Kernels | None = None  # which multiply with the chunks as they lie; None = torch
        for name in EXPERT_MAPS:
            num_experts, columns, num_outputs = getattr(plain, name).shape
            shape = (num_experts, num_outputs, mxfp4.row_bytes(columns))
            self.register_parameter(name, stand_in(shape, torch.uint8))
            self.register_parameter(f"{name}_bias", getattr(plain, f"{name}_bias"))

    def forward(self, rows: torch.Tensor, experts: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Return [n, H] for rows [n, H], the experts [n, k] that each has chosen, and what each has of the sum."""
        chosen = experts.flatten()
        order = chosen.argsort(stable=True)
        sorted_rows = rows[order // experts.shape[1]]
        found = torch.empty_like(sorted_rows)
        end = 0
        for expert, count in enumerate(chosen.bincount().tolist()):
            start, end = end, end + count
            if count:
                both = self._multiply("gate_up_proj", expert, sorted_rows[start:end])
                found[order[start:end]] = self._multiply("down_proj", expert, self._apply_gate(both))
        return (found * shares.reshape(-1, 1)).view(*experts.shape, -1).sum(1).to(rows.dtype)

    def _multiply(self, name: str, expert: int, rows: torch.Tensor) -> torch.Tensor:
        """Return [n, out] for rows [n, in]."""
        weight: torch.Tensor = getattr(self, name)[expert]
        bias: torch.Tensor = getattr(self, f"{name}_bias")[expert]
        if self.kernels is None:
            return functional.linear(rows, mxfp4.expand(weight, rows.dtype)) + bias
        floats, out = rows.float().contiguous(), torch.empty(len(rows), len(weight))
        self.kernels.multiply(
            abi.FLOAT32,
            floats.data_ptr(),
            abi.Linear(weight.data_ptr(), None, abi.MXFP4, None),
            out.data_ptr(),
            num_rows=len(rows),
            columns=rows.shape[1],
            num_outputs=len(weight),
        )
        return out.to(rows.dtype) + bias


Quantized = QuantizedLinear | QuantizedEmbedding


def find_formats(module: Any) -> Mapping[str, Format]:
    """Return how weights of fewer bits lie, by their names."""
    parts = module.named_modules(remove_duplicate=False)
    return {f"{path}.weight": part.format for path, part in parts if isinstance(part, Quantized)}


def plain_shapes(module: Any) -> Mapping[str, tuple[int, int]]:
    """Return how many outputs and inputs weights of fewer bits have, by their names."""
    parts = [(f"{path}.weight".lstrip("."), part) for path, part in module.named_modules(remove_duplicate=False)]
    maps = {name: (part.out_features, part.in_features) for name, part in parts if isinstance(part, QuantizedLinear)}
    tables = {
        name: (part.num_embeddings, part.embedding_dim) for name, part in parts if isinstance(part, QuantizedEmbedding)
    }
    return maps | tables


def name_of_format(module: Any) -> str | None:
    """Return how the weights of a model's maps lie, the first one's; None = all are plain."""
    if any(isinstance(part, PackedExperts) for part in module.modules()):
        return mxfp4.NAME
    maps = (part.format.name for part in module.modules() if isinstance(part, QuantizedLinear))
    return next(maps, None)


def computed_dtype(module: Any) -> torch.dtype:
    """Return the type that a module computes in: of its first floating parameter that is no scale."""
    found: torch.dtype = next(
        parameter.dtype
        for name, parameter in module.named_parameters()
        if parameter.is_floating_point() and not name.endswith(SCALE)
    )
    return found


def use_kernels(module: Any, kernels: Kernels | Missing) -> None:
    """Let our kernels multiply where torch would make weights plain that they can read."""
    for part in module.modules():
        if isinstance(part, PackedExperts) and isinstance(kernels, Kernels):
            part.kernels = kernels


def name_of_kernels(module: Any) -> str | None:
    """Return which kernels multiply parts of a module that torch computes; None = there are none."""
    found = (part.kernels for part in module.modules() if isinstance(part, PackedExperts))
    return next((kernels.name for kernels in found if kernels is not None), None)
