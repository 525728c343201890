"""How the weights of a linear map may lie in memory, each row for itself, and what torch makes of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch.nn import functional

from dormouse_worker.model.parallel.shards import Spans
from dormouse_worker.model.quantized import grouped, int4, int8, rounding
from dormouse_worker.model.quantized.blocks import GROUP, block_size_of
from dormouse_worker.model.quantized.grouped import Chunks
from dormouse_worker.model.quantized.rotation import rotate


@dataclass(frozen=True, slots=True)
class Format:
    """One way."""

    name: str
    row_bytes: Callable[[int], int]  # of a row of so many columns
    expand: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]  # uint8 [n, bytes], float [n], in -> [n, in]
    is_rotated: bool  # rows are multiplied with what is expanded once they are rotated (see `rotation`)
    unit: Callable[[int], int]  # so many neighbours of so many columns stay together where ranks divide them
    take_columns: Callable[[torch.Tensor, Spans], torch.Tensor]  # uint8 [n, bytes], whole units -> uint8 [n, bytes]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    def operands(
        self, rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what is to be multiplied for rows [..., in] and a map, in the rows' type, on any device."""
        plain = self.expand(weight, scale, rows.shape[-1]).to(rows.dtype)
        return rotate(rows).to(rows.dtype) if self.is_rotated else rows, plain

    def multiply(
        self, rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return rows [..., in] times a map [..., out], in the rows' type, on any device."""
        return functional.linear(*self.operands(rows, weight, scale), bias)

    def dequantize(self, weight: torch.Tensor, scale: torch.Tensor, columns: int) -> torch.Tensor:
        """Return the plain weight float32 [n, columns]."""
        expanded = self.expand(weight, scale, columns)
        return rotate(expanded) if self.is_rotated else expanded


INT8 = Format(
    name=rounding.INT8.name,
    row_bytes=rounding.INT8.row_bytes,
    expand=lambda weight, scale, _: int8.expand(weight, scale),
    is_rotated=True,
    unit=block_size_of,
    take_columns=int8.take_columns,
)
INT4 = Format(
    name=rounding.INT4.name,
    row_bytes=rounding.INT4.row_bytes,
    expand=int4.expand,
    is_rotated=True,
    unit=lambda _: GROUP,
    take_columns=int4.take_columns,
)
FORMATS: Mapping[str, Format] = MappingProxyType({INT8.name: INT8, INT4.name: INT4})  # that are rounded to by us


def _kept(chunks: Chunks) -> Format:
    return Format(
        chunks.value,
        chunks.row_bytes,
        lambda weight, _, columns: grouped.expand(weight, columns, chunks),
        is_rotated=False,
        unit=lambda _: grouped.CHUNK,
        take_columns=lambda weight, spans: grouped.take_columns(weight, spans, chunks),
    )


KEPT: Mapping[Chunks, Format] = MappingProxyType({chunks: _kept(chunks) for chunks in Chunks})
