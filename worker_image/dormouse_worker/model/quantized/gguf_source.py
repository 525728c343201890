"""Reads tensors of GGUF files, some rows at a time: plain, or as numbers with scales. Holds no more than it makes.

rows of blocks in the file --read--> bytes of some rows --made--> the window that is read
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.gguf.names import Origin
from dormouse_worker.files.gguf.types import row_bytes
from dormouse_worker.model.quantized.blocks import SCALE
from dormouse_worker.model.quantized.gguf_blocks import grouped_rows, plain_rows
from dormouse_worker.model.quantized.grouped import Chunks, pack
from dormouse_worker.model.quantized.pieces import put
from dormouse_worker.model.weights.layout import Slot
from dormouse_worker.model.weights.reader import CheckpointSource
from dormouse_worker.model.weights.source import Read

_SERIAL_ELEMENTS = 1 << 14  # few enough that torch computes them on the calling thread, of which there are many


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the files as rows, one of which is a number where there is but one dimension."""

    origin: Origin
    kept: Chunks | None = None  # how numbers that stay lie (see `grouped`); None = made plain

    @property
    def num_rows(self) -> int:
        """Return how many there are."""
        return self.origin.stored.shape[0]

    @property
    def columns(self) -> int:
        """Return how many numbers a row has."""
        shape = self.origin.stored.shape
        return shape[1] if len(shape) > 1 else 1

    @property
    def raw(self) -> Slot:
        """Return what is read of the file: bytes."""
        return Slot(
            self.origin.name, 0, (self.num_rows, row_bytes(self.origin.stored.dtype, self.columns)), torch.uint8
        )

    def run(self, first: int, end: int) -> tuple[int, int, int]:
        """Return where the rows [first, end) lie in the file: the first one, how many, and in which steps.

        Fewer than asked for where they do not lie alike. A head of which pairs are turned has its rows in pairs there,
        (0, half), (1, half + 1), …
        """
        if not self.origin.num_heads:
            return first, end - first, 1
        size = self.num_rows // self.origin.num_heads
        head, row = divmod(first, size)
        is_second, pair = divmod(row, size // 2)
        return head * size + 2 * pair + is_second, min(end - first, size // 2 - pair), 2


class GgufSource:
    """Implements `WeightSource` over a source that gives the bytes of the files' tensors by their names."""

    path: Literal["fast"] = "fast"
    held_bytes = 0

    def __init__(self, source: CheckpointSource, tensors: Mapping[str, GgufTensor]) -> None:
        """`tensors` by the names of their plain slots."""
        self._source, self._tensors = source, tensors
        kept = (name for name, tensor in tensors.items() if tensor.kept is not None)
        self._weight_of = {f"{name.removesuffix('weight')}{SCALE}": name for name in kept}

    def __repr__(self) -> str:
        return f"GgufSource({len(self._tensors)} tensors, {self._source!r})"

    def origin(self, name: str) -> str:
        """See `WeightSource`."""
        return self._source.origin(self._tensors[self._weight_of.get(name, name)].origin.name)

    @contextmanager
    def open(self) -> Iterator[Read]:
        """See `WeightSource`."""
        with self._source.open() as read_bytes:

            def read(slot: Slot, start: int, end: int, target: torch.Tensor) -> None:
                if slot.name in self._weight_of:  # chunks have the scales
                    target.copy_(torch.ones(len(target) // torch.float32.itemsize).view(torch.uint8))
                else:
                    self._read_rows(read_bytes, slot, (start, end), target)

            yield read

    def _read_rows(self, read_bytes: Read, slot: Slot, span: tuple[int, int], target: torch.Tensor) -> None:
        tensor = self._tensors[slot.name]
        made_bytes = slot.num_bytes // tensor.num_rows
        row, end = span[0] // made_bytes, -(-span[1] // made_bytes)
        most = max(1, _SERIAL_ELEMENTS // tensor.columns)
        while row < end:
            first, count, step = tensor.run(row, min(row + most, end))
            raw = _read_run(read_bytes, tensor.raw, first, count, step)
            made = self._made(tensor, slot, raw)
            put(made.contiguous().view(torch.uint8), row * made_bytes - span[0], target)
            row += count

    def _made(self, tensor: GgufTensor, slot: Slot, raw: torch.Tensor) -> torch.Tensor:
        if tensor.kept is None:
            rows = plain_rows(tensor.origin.stored.dtype, raw)
            return (rows - tensor.origin.less if tensor.origin.less else rows).to(slot.dtype)
        grouped = grouped_rows(tensor.origin.stored.dtype, raw)
        if not grouped.is_finite:
            raise ModelInvalid(f"{self.origin(slot.name)} holds a scale that is not finite; copy the file again")
        return pack(grouped, tensor.kept)


def _read_run(read_bytes: Read, raw: Slot, first: int, count: int, step: int) -> torch.Tensor:
    """Return rows uint8 [count, bytes]: each so many behind the one before."""
    size = raw.shape[1]
    num_rows = (count - 1) * step + 1
    read = torch.empty(num_rows, size, dtype=torch.uint8)
    read_bytes(raw, first * size, (first + num_rows) * size, read.view(-1))
    return read[::step]
