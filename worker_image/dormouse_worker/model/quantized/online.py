"""Quantizes weights while they are read, row by row: the plain ones are never in memory together.

plain source --some rows--> numbers and scales --> the window that is read
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dormouse_worker.model.quantized.blocks import SCALE
from dormouse_worker.model.quantized.pieces import put
from dormouse_worker.model.quantized.rounding import Bytes, Rounding
from dormouse_worker.model.scratch import Floats
from dormouse_worker.model.tensors import Tensor, as_array, bytes_of, floats_of, zeros
from dormouse_worker.model.weights.layout import Slot, WeightLayout
from dormouse_worker.model.weights.source import Contents, Read, WeightSource, refusing_odd

_ELEMENTS = 1 << 16  # that are rounded in one go: they lie in the cache of the thread that rounds them


@dataclass(frozen=True, slots=True)
class Replaced:
    """What is in the place of a plain tensor."""

    plain: Slot
    rounding: Rounding


class OnlineSource:
    """Implements `WeightSource` for a module that was converted, over a source of its plain weights."""

    def __init__(self, source: WeightSource, replaced: Mapping[str, Replaced]) -> None:
        """`replaced` has the tensor that was in the place of each quantized weight."""
        self._source, self._replaced = source, replaced
        self._weight_of = {f"{name.removesuffix('weight')}{SCALE}": name for name in replaced}

    def __repr__(self) -> str:
        return f"OnlineSource({len(self._replaced)} weights of {self._source!r})"

    @property
    def path(self) -> Literal["fast", "transformers"]:
        """See `WeightSource`."""
        return self._source.path

    @property
    def held_bytes(self) -> int:
        """See `WeightSource`."""
        return self._source.held_bytes

    def origin(self, name: str) -> str:
        """See `WeightSource`."""
        return self._source.origin(self._weight_of.get(name, name))

    @contextmanager
    def open(self) -> Iterator[Read]:
        """See `WeightSource`."""
        with self._source.open() as read_any:
            checked = refusing_odd(read_any, Contents(WeightLayout((), {}, 0), self._source, {}))
            rounding = _Rounding(self._replaced, checked)

            def read(slot: Slot, start: int, end: int, target: Tensor) -> None:
                if slot.name in self._replaced:
                    rounding.read_numbers(slot, start, target)
                elif slot.name in self._weight_of:
                    rounding.read_scales(self._weight_of[slot.name], start, target)
                else:
                    read_any(slot, start, end, target)

            yield read


class _Rounding:
    """Owns the scales found so far, so that a weight is read once for both; several threads read."""

    def __init__(self, replaced: Mapping[str, Replaced], read: Read) -> None:
        self._replaced, self._read = replaced, read
        self._scales: dict[str, Floats] = {}  # by weight; NaN where no row was read yet

    def __repr__(self) -> str:
        return f"_Rounding({len(self._scales)} weights begun)"

    def read_numbers(self, slot: Slot, start: int, target: Tensor) -> None:
        """Fill the target with the bytes of the numbers from `start` on."""
        row_bytes = slot.shape[1]
        for row, numbers in self._round(slot.name, start // row_bytes, -(-(start + len(target)) // row_bytes)):
            put(numbers, row * row_bytes - start, as_array(target))

    def read_scales(self, name: str, start: int, target: Tensor) -> None:
        """Fill the target with the bytes of a weight's scales from `start` on."""
        first, end = (at // np.float32().itemsize for at in (start, start + len(target)))
        if np.isnan(self._known(name)[first:end]).any():  # of rows that another thread has yet to read
            for _ in self._round(name, first, end):
                pass
        as_array(target)[:] = self._known(name)[first:end].view(np.uint8)

    def _known(self, name: str) -> Floats:
        known = self._scales.get(name)
        if known is None:
            unknown = np.full(self._replaced[name].plain.shape[:1], np.nan, np.float32)
            known = self._scales.setdefault(name, unknown)
        return known

    def _round(self, name: str, first: int, end: int) -> Iterator[tuple[int, Bytes]]:
        known, replaced = self._known(name), self._replaced[name]
        for row, rows in _rows_of(self._read, replaced.plain, first, end):
            numbers, known[row : row + len(rows)] = replaced.rounding.quantize_rows(rows)
            yield row, numbers


def _rows_of(read: Read, plain: Slot, first: int, end: int) -> Iterator[tuple[int, Floats]]:
    """Yield the rows [first, end) of a plain weight, some at a time, with the number of the first of them."""
    columns = plain.shape[1]
    row_bytes, step = columns * plain.dtype.itemsize, max(1, _ELEMENTS // columns)
    for row in range(first, end, step):
        count = min(step, end - row)
        rows = zeros((count, columns), plain.dtype, None)
        read(plain, row * row_bytes, (row + count) * row_bytes, bytes_of(rows))
        yield row, floats_of(rows)
