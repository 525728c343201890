"""Which linear layers of a model can be adapted, and how their matrices lie in a slot. Pure arithmetic.

    arena | slot 0 | slot 1 | ...        slot | A of map 0 | B of map 0 | A of map 1 | ...
    A     [parts][rank][inputs]          B    [rank][outputs of all parts, side by side]

A map is what our forward pass multiplies at once: query, key and value are parts of one. All slots are alike, with room
for the highest rank: what an adapter does not use is zero. A soft prompt has its vectors there, one behind the other. A
rank of a group has of A the columns, and of B the outputs, that it has of the weight, and of a soft prompt all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dormouse_worker.files.adapter_files import Shape
from dormouse_worker.files.soft_prompt_config import KeyShape
from dormouse_worker.files.soft_prompt_files import PromptRoom
from dormouse_worker.model.device.arena import ALIGNMENT_BYTES, round_up
from dormouse_worker.model.parallel.shards import Share
from dormouse_worker.model.quantized.modules import QuantizedLinear, computed_dtype

RANK_UNIT = 4  # kernels read so many rows of A at a time
JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_LAYERS = ".layers."
_Linear = nn.Linear | QuantizedLinear


@dataclass(frozen=True, slots=True)
class AdaptedMap:
    """One map, and where its matrices begin in a slot, in bytes."""

    modules: tuple[str, ...]
    num_inputs: int
    starts: tuple[int, ...]  # where the outputs of each part begin; behind the last one, their number
    shares: tuple[Share | None, ...]  # what of each part's weight [outputs, inputs] is here; None = all of it
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
    whole: Mapping[str, Shape]  # the linear layers of the whole model, by name: what an adapter has to fit
    vocab_size: int  # of the whole model
    room: PromptRoom  # for soft prompts

    def a_of(self, slot: torch.Tensor, each: AdaptedMap) -> torch.Tensor:
        """Return the view of a slot's bytes, uint8 [slot_bytes], that is a map's A, [parts, rank, inputs]."""
        return self._view(slot, each.a_offset, (len(each.modules), self.rank, each.num_inputs))

    def b_of(self, slot: torch.Tensor, each: AdaptedMap) -> torch.Tensor:
        """Return the view that is a map's B, [rank, outputs]."""
        return self._view(slot, each.b_offset, (self.rank, each.num_outputs))

    def prompt_of(self, slot: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Return the view that is a soft prompt's vectors [start, end) of embedded tokens, [end - start, size]."""
        size = self.room.size
        return self._view(slot, start * size * self.dtype.itemsize, (end - start, size))

    def keys_of(self, slot: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """Return the view that is a soft prompt's keys and values, [num_tokens, layers, 2, heads, head size]."""
        keys = self.room.keys
        assert not isinstance(keys, str), keys
        return self._view(slot, 0, (num_tokens, keys.num_layers, 2, keys.num_kv_heads, keys.head_size))

    def _view(self, slot: torch.Tensor, offset: int, shape: Sequence[int]) -> torch.Tensor:
        end = offset + math.prod(shape) * self.dtype.itemsize
        return slot[offset:end].view(self.dtype).view(*shape)


def find_linears(module: Any) -> dict[str, Shape]:
    """Return the linear layers of a whole model that can be adapted, by name; meta tensors will do."""
    return {name: Shape(part.in_features, part.out_features) for name, part in _linears(module).items()}


def plan_adapters(
    module: Any, max_rank: int, *, whole: Mapping[str, Shape], shares: Mapping[str, Share], keys: KeyShape | str
) -> AdapterLayout:
    """Return where adapters of the module's blocks lie; of weights that are not among the shares it has all."""
    config = module.config.get_text_config()
    rank, end, maps, dtype = round_up(max_rank, RANK_UNIT), 0, [], computed_dtype(module)
    for names, layers in _joined(module):
        starts = [0]
        for layer in layers:
            starts.append(starts[-1] + len(layer.weight))
        num_inputs, size = _num_inputs(layers[0]), dtype.itemsize
        b_offset = end + round_up(len(names) * rank * num_inputs * size, ALIGNMENT_BYTES)
        mine = tuple(shares.get(f"{name}.weight") for name in names)
        maps.append(AdaptedMap(names, num_inputs, tuple(starts), mine, end, b_offset))
        # kernels may read a vector that passes the end of B
        end = b_offset + round_up(rank * starts[-1] * size + 1, ALIGNMENT_BYTES)
    room = PromptRoom(int(config.hidden_size), end // dtype.itemsize, keys)
    return AdapterLayout(tuple(maps), rank, dtype, end, whole, int(config.vocab_size), room)


def _linears(module: Any) -> dict[str, _Linear]:
    kinds = (nn.Linear, QuantizedLinear)  # none that derives from them, which may compute otherwise
    return {name: part for name, part in module.named_modules() if type(part) in kinds and _LAYERS in name}


def _num_inputs(layer: _Linear) -> int:
    """Return how many inputs are here: a rank may have cut the weight, and one of fewer bits is packed."""
    return layer.in_features if isinstance(layer, QuantizedLinear) else layer.weight.shape[1]


def _joined(module: Any) -> Iterator[tuple[tuple[str, ...], list[_Linear]]]:
    """Yield the maps of the module's blocks: their parts' names, and their parts."""
    linears = _linears(module)
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
