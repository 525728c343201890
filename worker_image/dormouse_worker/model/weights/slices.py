"""Reads a rank's part of the weights, and no more, from a source that has all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import torch

from dormouse_worker.model.parallel.shards import Share
from dormouse_worker.model.weights.layout import Slot
from dormouse_worker.model.weights.source import Read, WeightSource


class SlicedSource:
    """Implements `WeightSource` for the slots of a rank: each is what its share says of a tensor of the whole."""

    def __init__(self, whole: WeightSource, shares: Mapping[str, Share]) -> None:
        """`shares` has every slot that is read, by its name."""
        self._whole, self._shares = whole, shares

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
                whole = Slot(share.name, 0, share.shape, slot.dtype)
                done = 0
                for first, count in share.runs(start // size, end // size):
                    part = target[done : done + count * size]
                    read_whole(whole, first * size, (first + count) * size, part)
                    done += count * size

            yield read
