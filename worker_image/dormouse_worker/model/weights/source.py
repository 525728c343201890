"""Where weights come from, and what of them a module's memory shall hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.model.finite import are_finite
from dormouse_worker.model.tensors import Tensor, as_floats, bytes_of
from dormouse_worker.model.weights.layout import Slot, WeightLayout

if TYPE_CHECKING:
    import torch

Read = Callable[[Slot, int, int, Tensor], None]


class WeightSource(Protocol):
    """Gives the same weights as often as it is opened, or says that they changed."""

    @property
    def path(self) -> Literal["fast", "transformers"]:
        """Return whose code reads: ours, or transformers' with all of its conversions."""

    @property
    def held_bytes(self) -> int:
        """Return the host memory that it holds now and gives back while it is read."""

    def origin(self, name: str) -> str:
        """Return where the slot of this name comes from, for people: file and tensor. Once it was opened."""

    def open(self) -> AbstractContextManager[Read]:
        """Return `read(slot, start, end, target)`, which many threads may call.

        It fills `target`, uint8 [end - start] in host memory, with these bytes of the tensor. Opening and reading raise
        ModelNotFound, ModelInvalid, ModelChanged, …; nothing stays open.
        """


@dataclass(frozen=True, slots=True)
class Contents:
    """What a module's memory shall hold."""

    layout: WeightLayout
    source: WeightSource
    extras: Mapping[str, torch.Tensor]  # what no source has: small buffers that are computed
    may_be_infinite: Collection[str] = ()  # names of slots: masks; sinks, where -inf lets a head have none


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How one load went."""

    num_bytes: int
    seconds: float
    format: str
    path: Literal["fast", "transformers"]

    def __str__(self) -> str:
        gigabytes = self.num_bytes / 1e9
        return f"{gigabytes:.2f} GB in {self.seconds:.2f} s, {self.gb_per_s:.2f} GB/s ({self.format}, {self.path})"

    @property
    def gb_per_s(self) -> float:
        """Return the rate in 10**9 bytes per second."""
        return self.num_bytes / 1e9 / max(self.seconds, 1e-9)


def with_extras(read: Read, extras: Mapping[str, torch.Tensor]) -> Read:
    """Return a `read` that takes tensors which no source has, such as buffers that are computed, from host memory."""

    def read_any(slot: Slot, start: int, end: int, target: Tensor) -> None:
        extra = extras.get(slot.name)
        if extra is None:
            read(slot, start, end, target)
        else:
            target[:] = as_bytes(extra)[start:end]

    return read_any


def refusing_odd(read: Read, contents: Contents) -> Read:
    """Return a `read` that raises ModelInvalid where a floating weight is NaN, or infinite.

    No model is trained to that: a damaged file says it, or a number that is too large for the type it is loaded as.
    """

    def read_finite(slot: Slot, start: int, end: int, target: Tensor) -> None:
        read(slot, start, end, target)
        if not are_finite(target, slot.dtype):
            _refuse(slot, as_floats(target, slot.dtype), start // slot.dtype.itemsize, contents)

    return read_finite


def _refuse(slot: Slot, numbers: npt.NDArray[Any], first: int, contents: Contents) -> None:
    """Raise ModelInvalid for the first number that is not allowed; numbers [n] begin with the tensor's `first`."""
    is_odd = np.isnan(numbers) if slot.name in contents.may_be_infinite else ~np.isfinite(numbers)
    odd = np.flatnonzero(is_odd)
    if len(odd):
        index = int(odd[0])
        raise ModelInvalid(
            f"{contents.source.origin(slot.name)} holds {float(numbers[index])} at element {first + index} (as "
            f"{slot.dtype}); weights must be finite numbers: copy the file again, or choose a dtype with a wider range"
        )


def as_bytes(tensor: torch.Tensor) -> Tensor:
    """Return the tensor as uint8 [n]; a view if it is contiguous."""
    return bytes_of(tensor.detach().contiguous())
