"""How the weights lie in their arena: every storage once, however many tensors share it. Pure arithmetic.

arena   | embedding | q k v |pad| o | gate up | down |pad| ... | buffers |
        each slot begins at a multiple of 512 bytes; neighbours that are joined later lie without a gap
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dormouse_worker.model.device.arena import ALIGNMENT_BYTES
from dormouse_worker.model.tensors import Dtype, Tensor

PART = "/"  # stands between a tensor's name and that of a part of it; no module's name has it


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor's place; tensors of one storage have the same `offset` where they are the same part of it."""

    name: str
    offset: int  # bytes from the start of the arena
    shape: tuple[int, ...]
    dtype: Dtype

    @property
    def num_bytes(self) -> int:
        """Return the tensor's size."""
        return int(self.dtype.itemsize) * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """All slots in the order of their offsets; a tied tensor has a slot under its first name only."""

    slots: tuple[Slot, ...]
    aliases: Mapping[str, str]  # further names of tied tensors -> the name of their slot
    num_bytes: int


def plan_layout(
    tensors: Iterable[tuple[str, Tensor]],
    joined: Sequence[Sequence[str]] = (),
    *,
    identify: Callable[[Tensor], object] | None = None,
) -> WeightLayout:
    """Return the layout of contiguous tensors, in the order in which they come; meta tensors will do.

    `joined` names tensors that shall lie behind each other without a gap, so that one view spans them; such a group
    stands where its first member would. Tensors with one identity are one; None = see `identity`.
    """
    by_name: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first_names: dict[object, str] = {}
    for name, tensor in tensors:
        first = first_names.setdefault((identify or identity)(tensor), name)
        if first == name:
            by_name[name] = tensor
        else:
            aliases[name] = first
    follows = {first: names[1:] for names in joined if (first := names[0]) in by_name and not set(names) & set(aliases)}
    inner = {name for names in follows.values() for name in names}
    slots: list[Slot] = []
    end = 0
    for first in by_name:
        if first in inner:
            continue
        end = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        for name in (first, *follows.get(first, ())):
            slot = Slot(name, end, tuple(by_name[name].shape), by_name[name].dtype)
            slots.append(slot)
            end += slot.num_bytes
    return WeightLayout(tuple(slots), aliases, end)


def identity(tensor: Tensor) -> object:
    """Return what two names of one tensor have in common. Tensors without data are themselves."""
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return id(tensor)
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
