"""The forward pass over weights that are still on their way: each layer waits for its own. The decoder knows not.

wait for embedding and frequencies -> layer 0: wait, compute -> layer 1: wait, compute -> ... -> wait, norm and head
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import overload

import torch

from dormouse_worker.model.lean.decoder import LeanDecoder
from dormouse_worker.model.lean.parts import Layer

Wait = Callable[[Iterable[torch.Tensor]], None]  # returns when the contents of these are there


class ArrivingLayers(Sequence[Layer]):
    """Layers in their order; an iteration gives each when its weights are there, and ends when the head's are."""

    def __init__(self, decoder: LeanDecoder, wait: Wait) -> None:
        self._decoder, self._wait = decoder, wait

    def __len__(self) -> int:
        return len(self._decoder.layers)

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Layer]: ...
    def __getitem__(self, index: int | slice) -> Layer | Sequence[Layer]:
        """Return layers without waiting: to know them, not to compute."""
        return self._decoder.layers[index]

    def __iter__(self) -> Iterator[Layer]:
        for layer in self._decoder.layers:
            self._wait(find_tensors(layer))
            yield layer
        self._wait(find_tensors((self._decoder.norm, self._decoder.head)))


def arriving(decoder: LeanDecoder, wait: Wait) -> LeanDecoder:
    """Return a decoder of the same weights for one pass; returns when what lies before the layers is there."""
    wait(find_tensors((decoder.embedding, decoder.rotary)))
    return replace(decoder, layers=ArrivingLayers(decoder, wait))


def find_tensors(part: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of a part of a decoder: of its fields and of theirs."""
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from find_tensors(item)
    elif is_dataclass(part):
        for field in fields(part):
            yield from find_tensors(getattr(part, field.name))
