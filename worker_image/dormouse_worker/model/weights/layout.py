"""How the weights lie in their arena: every storage once, however many tensors share it. Pure arithmetic.

arena   | embedding | q k v |pad| o | gate up | down |pad| ... | buffers |
        each slot begins at a multiple of 512 bytes; neighbours that are joined later lie without a gap
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dormouse_worker.model.device.arena import ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor's place; tensors of one storage have the same `offset` where they are the same part of it."""

    name: str
    offset: int  # bytes from the start of the arena
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Return the tensor's size."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """All slots in the order of their offsets; a tied tensor has a slot under its first name only."""

    slots: tuple[Slot, ...]
    aliases: Mapping[str, str]  # further names of tied tensors -> the name of their slot
    num_bytes: int


def plan_layout(tensors: Iterable[tuple[str, torch.Tensor]], joined: Sequence[Sequence[str]] = ()) -> WeightLayout:
    """Return the layout of contiguous tensors, in the order in which they come; meta tensors will do.

    `joined` names tensors that shall lie behind each other without a gap, so that one view spans them; such a group
    stands where its first member would. Tensors with one identity (or one address) are one.
    """
    by_name: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    first_names: dict[object, str] = {}
    for name, tensor in tensors:
        first = first_names.setdefault(identity(tensor), name)
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


def identity(tensor: torch.Tensor) -> object:
    """Return what two names of one tensor have in common. Tensors without data are themselves."""
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return id(tensor)
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
