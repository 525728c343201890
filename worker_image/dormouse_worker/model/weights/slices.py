"""Reads a rank's part of the weights, and no more, from a source that has all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import torch

from dormouse_worker.model.parallel.shards import Share
from dormouse_worker.model.quantized.formats import Format
from dormouse_worker.model.quantized.pieces import put
from dormouse_worker.model.weights.layout import Slot
from dormouse_worker.model.weights.source import Read, WeightSource

_WINDOW_BYTES = 1 << 20  # of whole rows that are held to take columns of


class SlicedSource:
    """Implements `WeightSource` for the slots of a rank: each is what its share says of a tensor of the whole."""

    def __init__(
        self, whole: WeightSource, shares: Mapping[str, Share], formats: Mapping[str, Format] | None = None
    ) -> None:
        """`shares` has every slot that is read, by its name, `formats` those of the whole whose weights are packed.

        Where there are formats, the source makes rows: it is asked for whole ones, many at a time.
        """
        self._whole, self._shares = whole, shares
        self._formats, self._makes_rows = formats or {}, formats is not None

    def __repr__(self) -> str:
        return f"SlicedSource({self._whole!r})"

    @property
    def path(self) -> Literal["fast", "transformers"]:
        """See `WeightSource`."""
        return self._whole.path

    @property
    def held_bytes(self) -> int:
        """See `WeightSource`."""
        return self._whole.held_bytes

    def origin(self, name: str) -> str:
        """See `WeightSource`."""
        return self._whole.origin(self._shares[name].name)

    @contextmanager
    def open(self) -> Iterator[Read]:
        """See `WeightSource`."""
        with self._whole.open() as read_whole:

            def read(slot: Slot, start: int, end: int, target: torch.Tensor) -> None:
                share, size = self._shares[slot.name], slot.dtype.itemsize
                packed = self._formats.get(share.name)
                if self._makes_rows and share.dim == 1 and share.spans is not None:
                    _read_columns(read_whole, share, packed, slot, (start, end), target)
                    return
                if packed is not None:
                    share = replace(share, shape=(share.shape[0], packed.row_bytes(share.shape[1])))
                whole = Slot(share.name, 0, share.shape, slot.dtype)
                done = 0
                for first, count in share.runs(start // size, end // size):
                    part = target[done : done + count * size]
                    read_whole(whole, first * size, (first + count) * size, part)
                    done += count * size

            yield read


def _read_columns(
    read_whole: Read, share: Share, packed: Format | None, slot: Slot, window: tuple[int, int], target: torch.Tensor
) -> None:
    """Fill the target with the bytes of a window of a rank's columns."""
    assert share.spans is not None, "asked for by the caller"
    size, (num_rows, columns) = slot.dtype.itemsize, share.shape
    whole_bytes = columns * size if packed is None else packed.row_bytes(columns)
    own_bytes = slot.num_bytes // num_rows
    whole = Slot(share.name, 0, (num_rows, whole_bytes // size), slot.dtype)
    end, step = -(-window[1] // own_bytes), max(1, _WINDOW_BYTES // whole_bytes)
    for row in range(window[0] // own_bytes, end, step):
        rows = torch.empty(min(step, end - row), whole_bytes, dtype=torch.uint8)
        read_whole(whole, row * whole_bytes, row * whole_bytes + rows.numel(), rows.view(-1))
        if packed is None:
            taken = torch.cat([rows[:, start * size : stop * size] for start, stop in share.spans], 1)
        else:
            taken = packed.take_columns(rows, share.spans)
        put(taken, row * own_bytes - window[0], target)
