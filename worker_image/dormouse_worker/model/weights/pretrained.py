"""The long way: transformers loads the whole module, with every conversion it knows; we take its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch

from dormouse_worker.errors import ModelChanged
from dormouse_worker.model.weights.layout import Slot
from dormouse_worker.model.weights.skeleton import iter_tensors
from dormouse_worker.model.weights.source import Read, as_bytes


class PretrainedSource:
    """Implements `WeightSource`. Needs host memory for the whole model while it is open."""

    path: Literal["transformers"] = "transformers"

    def __init__(self, load: Callable[[], Any], first: Mapping[str, torch.Tensor]) -> None:
        """`load` returns the module; `first` holds the tensors of one just loaded, which the first `open` gives."""
        self._load = load
        self._first: Mapping[str, torch.Tensor] | None = dict(first)

    def __repr__(self) -> str:
        return "PretrainedSource()"

    @contextmanager
    def open(self) -> Iterator[Read]:
        """See `WeightSource`."""
        first, self._first = self._first, None
        found = dict(iter_tensors(self._load())) if first is None else first
        tensors = {name: tensor.detach().contiguous() for name, tensor in found.items()}
        del first, found

        def read(slot: Slot, start: int, end: int, target: torch.Tensor) -> None:
            target.copy_(as_bytes(_same(tensors, slot))[start:end])

        yield read


def _same(tensors: Mapping[str, torch.Tensor], slot: Slot) -> torch.Tensor:
    tensor = tensors.get(slot.name)
    if tensor is None or (tuple(tensor.shape), tensor.dtype) != (slot.shape, slot.dtype):
        raise ModelChanged(f"{slot.name} was {slot.dtype} {list(slot.shape)} and is another tensor; restart the worker")
    return tensor
