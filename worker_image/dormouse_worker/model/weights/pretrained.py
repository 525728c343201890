"""The long way: transformers loads the whole module, with every conversion it knows; we take its tensors.

Each tensor is let go as soon as its last byte was read, so that it and its place in the arena are in memory together
only for a moment:

    transformers' tensors   |████████|██████  |███     |        |
    arena                   |        |  ██████|   █████|████████|
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch

from dormouse_worker.common.errors import ModelChanged
from dormouse_worker.common.host import trim_heap
from dormouse_worker.model.weights.layout import Slot, identity
from dormouse_worker.model.weights.skeleton import iter_tensors
from dormouse_worker.model.weights.source import Read, as_bytes

TRIM_EVERY = 8  # tensors: the allocator keeps what lies between those that are still there


class PretrainedSource:
    """Implements `WeightSource`. Holds the whole model in host memory when it is opened, and less with each read."""

    path: Literal["transformers"] = "transformers"

    def __init__(
        self, load: Callable[[], Any], first: Iterable[tuple[str, torch.Tensor]], *, reads_once: bool = True
    ) -> None:
        """`load` returns the module; `first` are the tensors of one just loaded, which the first `open` gives.

        `reads_once` says that each byte is read once: what was read is let go.
        """
        self._load = load
        self._first: dict[str, torch.Tensor] | None = _distinct(first)
        self._reads_once = reads_once

    def __repr__(self) -> str:
        return f"PretrainedSource({self.held_bytes} bytes held)"

    @property
    def held_bytes(self) -> int:
        """Return the host memory that goes back while the first `open` is read."""
        first = self._first if self._reads_once else None
        return sum(tensor.nbytes for tensor in (first or {}).values())

    def origin(self, name: str) -> str:
        """See `WeightSource`. One weight may be made of several tensors of several files."""
        return f"{name}, as transformers reads it from the model's files,"

    @contextmanager
    def open(self) -> Iterator[Read]:
        """See `WeightSource`."""
        tensors, self._first = self._first, None
        if tensors is None:
            tensors = _distinct(iter_tensors(self._load()))
        for name, tensor in tensors.items():
            tensors[name] = tensor.contiguous()
        trim_heap()
        left = {name: tensor.nbytes for name, tensor in tensors.items()}
        lock, freed = threading.Lock(), itertools.count(1)

        def read(slot: Slot, start: int, end: int, target: torch.Tensor) -> None:
            target.copy_(as_bytes(_same(tensors, slot))[start:end])
            with lock:
                left[slot.name] -= end - start
                is_read = self._reads_once and left[slot.name] == 0
                if is_read:
                    del tensors[slot.name]
            if is_read and next(freed) % TRIM_EVERY == 0:
                trim_heap()

        try:
            yield read
        finally:
            tensors.clear()
            trim_heap()


def _distinct(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return each tensor under its first name, without the module that it belongs to."""
    names: dict[object, str] = {}
    return {name: tensor.detach() for name, tensor in named if names.setdefault(identity(tensor), name) == name}


def _same(tensors: Mapping[str, torch.Tensor], slot: Slot) -> torch.Tensor:
    tensor = tensors.get(slot.name)
    if tensor is None or (tuple(tensor.shape), tensor.dtype) != (slot.shape, slot.dtype):
        raise ModelChanged(f"{slot.name} was {slot.dtype} {list(slot.shape)} and is another tensor; restart the worker")
    return tensor
