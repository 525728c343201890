"""How the weights of a linear map may lie in memory, each row for itself, and what torch makes of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch.nn import functional

from dormouse_worker.model.quantized import int8
from dormouse_worker.model.quantized.rotation import rotate


@dataclass(frozen=True, slots=True)
class Format:
    """One way. All keep rotated weights (see `rotation`)."""

    name: str
    row_bytes: Callable[[int], int]  # of a row of so many columns
    quantize_rows: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # [n, in] -> uint8 [n, bytes], float [n]
    expand: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]  # of both, with in -> rotated float32 [n, in]

    def __repr__(self) -> str:
        return f"Format({self.name})"

    def multiply(
        self, rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return rows [..., in] times a map [..., out], in the rows' type, on any device."""
        plain = self.expand(weight, scale, rows.shape[-1])
        return functional.linear(rotate(rows).to(rows.dtype), plain.to(rows.dtype), bias)

    def dequantize(self, weight: torch.Tensor, scale: torch.Tensor, columns: int) -> torch.Tensor:
        """Return the plain weight float32 [n, columns]."""
        return rotate(self.expand(weight, scale, columns))


INT8 = Format("int8", lambda columns: columns, int8.quantize_rows, lambda weight, scale, _: int8.expand(weight, scale))
FORMATS: Mapping[str, Format] = MappingProxyType({INT8.name: INT8})
