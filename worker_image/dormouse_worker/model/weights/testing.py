"""The kit for tests of what weights do in memory: a source without files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import torch

from dormouse_worker.model.device.device import Device
from dormouse_worker.model.weights.layout import Slot, plan_layout
from dormouse_worker.model.weights.source import Contents, Read, as_bytes
from dormouse_worker.model.weights.store import WeightStore


class TensorSource:
    """Implements `WeightSource` over tensors of the test, which may change them, or have a read fail."""

    path: Literal["fast"] = "fast"
    held_bytes = 0

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = dict(tensors)
        self.num_opened = 0
        self.failure: Exception | None = None  # raised by every read while it is set

    def origin(self, name: str) -> str:
        """See `WeightSource`."""
        return f"the test's {name}"

    @contextmanager
    def open(self) -> Iterator[Read]:
        """See `WeightSource`."""
        self.num_opened += 1
        yield self._read

    def _read(self, slot: Slot, start: int, end: int, target: torch.Tensor) -> None:
        if self.failure is not None:
            raise self.failure
        target.copy_(as_bytes(self.tensors[slot.name])[start:end])


def make_store(
    device: Device,
    tensors: Mapping[str, torch.Tensor],
    extras: Mapping[str, torch.Tensor] | None = None,
    *,
    keeps_host_copy: bool = True,
    unit_bytes: int = 2 << 20,
) -> tuple[WeightStore, TensorSource]:
    """Return a store of these tensors and of extras, not loaded yet, and its source.

    Windows, slices and chunks are so small that there are several of them.
    """
    extras = extras or {}
    source = TensorSource(tensors)
    layout = plan_layout([*tensors.items(), *extras.items()])
    contents = Contents(layout, source, extras)
    units = {"window_bytes": unit_bytes, "slice_bytes": unit_bytes, "chunk_bytes": unit_bytes}
    return WeightStore(device, contents, keeps_host_copy=keeps_host_copy, **units), source
