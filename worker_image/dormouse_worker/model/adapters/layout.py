"""Which linear layers of a model can be adapted, and how their matrices lie in a slot. Pure arithmetic.

    arena | slot 0 | slot 1 | ...        slot | A of map 0 | B of map 0 | A of map 1 | ...
    A     [parts][rank][inputs]          B    [rank][outputs of all parts, side by side]

A map is what our forward pass multiplies at once: query, key and value are parts of one. All slots are alike, with room
for the highest rank: what an adapter does not use is zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dormouse_worker.files.adapter_files import Shape
from dormouse_worker.model.device.arena import ALIGNMENT_BYTES, round_up

RANK_UNIT = 4  # kernels read so many rows of A at a time
JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_LAYERS = ".layers."


@dataclass(frozen=True, slots=True)
class AdaptedMap:
    """One map, and where its matrices begin in a slot, in bytes."""

    modules: tuple[str, ...]
    num_inputs: int
    starts: tuple[int, ...]  # where the outputs of each part begin; behind the last one, their number
    a_offset: int
    b_offset: int

    @property
    def num_outputs(self) -> int:
        """Return the outputs of all parts."""
        return self.starts[-1]


@dataclass(frozen=True, slots=True)
class AdapterLayout:
    """How any adapter of a model lies in a slot."""

    maps: tuple[AdaptedMap, ...]
    rank: int  # the highest, in whole units
    dtype: torch.dtype
    slot_bytes: int

    def shapes(self) -> dict[str, Shape]:
        """Return the linear layers that can be adapted, by name."""
        return {
            name: Shape(each.num_inputs, each.starts[part + 1] - each.starts[part])
            for each in self.maps
            for part, name in enumerate(each.modules)
        }

    def a_of(self, slot: torch.Tensor, each: AdaptedMap) -> torch.Tensor:
        """Return the view of a slot's bytes, uint8 [slot_bytes], that is a map's A, [parts, rank, inputs]."""
        return self._view(slot, each.a_offset, (len(each.modules), self.rank, each.num_inputs))

    def b_of(self, slot: torch.Tensor, each: AdaptedMap) -> torch.Tensor:
        """Return the view that is a map's B, [rank, outputs]."""
        return self._view(slot, each.b_offset, (self.rank, each.num_outputs))

    def _view(self, slot: torch.Tensor, offset: int, shape: Sequence[int]) -> torch.Tensor:
        end = offset + math.prod(shape) * self.dtype.itemsize
        return slot[offset:end].view(self.dtype).view(*shape)


def plan_adapters(module: Any, dtype: torch.dtype, max_rank: int) -> AdapterLayout:
    """Return where adapters of the module's blocks lie; meta tensors will do."""
    rank, end, maps = round_up(max_rank, RANK_UNIT), 0, []
    for names, layers in _joined(module):
        starts = [0]
        for layer in layers:
            starts.append(starts[-1] + layer.out_features)
        num_inputs, size = layers[0].in_features, dtype.itemsize
        b_offset = end + round_up(len(names) * rank * num_inputs * size, ALIGNMENT_BYTES)
        maps.append(AdaptedMap(names, num_inputs, tuple(starts), end, b_offset))
        # kernels may read a vector that passes the end of B
        end = b_offset + round_up(rank * starts[-1] * size + 1, ALIGNMENT_BYTES)
    return AdapterLayout(tuple(maps), rank, dtype, end)


def _joined(module: Any) -> Iterator[tuple[tuple[str, ...], list[nn.Linear]]]:
    """Yield the maps of the module's blocks: their parts' names, and their parts."""
    linears = {name: part for name, part in module.named_modules() if type(part) is nn.Linear and _LAYERS in name}
    inner: set[str] = set()
    for name in linears:
        if name in inner:
            continue
        parent, _, own = name.rpartition(".")
        group = next((group for group in JOINED if group[0] == own), (own,))
        names = tuple(f"{parent}.{each}" for each in group)
        if not all(each in linears and each not in inner for each in names):
            names = (name,)
        inner.update(names)
        yield names, [linears[each] for each in names]
