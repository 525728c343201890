"""Random weights that depend on the seed and their names alone: the same after each sleep, wherever one begins."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from dormouse_worker.model.weights.layout import Slot
from dormouse_worker.model.weights.source import Read

SPREAD = 0.02  # of matrices: a standard deviation that transformers' own initialization often has
_SERIAL_ELEMENTS = 1 << 14  # few enough that torch computes them on the calling thread
_UNIFORM = 3**0.5  # a uniform number in [-sqrt(3), sqrt(3)) has a standard deviation of one
_FACTORS = (-49064778989728563, -4265267296055464877)  # of the steps of splitmix64's kin, as signed numbers
_MANTISSA = (1 << 24) - 1


class DummySource:
    """Implements `WeightSource`. Norms are about one, everything else about zero."""

    path: Literal["fast"] = "fast"
    held_bytes = 0

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __repr__(self) -> str:
        return f"DummySource(seed={self._seed})"

    def origin(self, name: str) -> str:
        """See `WeightSource`."""
        return f"{name}, drawn at random,"

    @contextmanager
    def open(self) -> Iterator[Read]:
        """See `WeightSource`."""
        yield self._read

    def _read(self, slot: Slot, start: int, end: int, target: torch.Tensor) -> None:
        del end  # the target says it too
        if not slot.dtype.is_floating_point:
            target.zero_()
            return
        numbers = target.view(slot.dtype)
        is_norm = len(slot.shape) == 1 and slot.name.endswith("weight")
        key, first = self._key(slot.name), start // slot.dtype.itemsize
        for done in range(0, len(numbers), _SERIAL_ELEMENTS):
            part = numbers[done : done + _SERIAL_ELEMENTS]
            part.copy_(_draw(key, first + done, len(part)).mul_(SPREAD).add_(1.0 if is_norm else 0.0))

    def _key(self, name: str) -> int:
        digest = hashlib.sha256(f"{self._seed} {name}".encode()).digest()
        return int.from_bytes(digest[:8], "little", signed=True)


def _draw(key: int, first: int, count: int) -> torch.Tensor:
    """Return float32 [count] of mean zero and deviation one: the numbers `first` and on of the key's sequence."""
    bits = torch.arange(first, first + count, dtype=torch.int64).mul_(_FACTORS[1]).add_(key)
    for factor in _FACTORS:
        bits = (bits ^ (bits >> 32)).mul_(factor)
    uniform = ((bits >> 24) & _MANTISSA).float().div_(_MANTISSA + 1)
    return uniform.mul_(2).sub_(1).mul_(_UNIFORM)
