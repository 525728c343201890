"""Which row of a pass has which adapter, and what that adds in torch. The kernels' own way is the same sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from dormouse_worker.model.adapters.layout import AdaptedMap
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.to_device import to_device


class Adder(Protocol):
    """Adds what adapters say to the rows of one pass, by kernels of a device or by torch."""

    def add(self, out: torch.Tensor, inputs: torch.Tensor, lora: Lora) -> None:
        """Add to a map's outputs [T, outputs] what adapters make of its inputs [T, inputs]; other rows stay."""


class AdapterRows:
    """The adapters of one pass. Rows without one are not touched: their bits are those of a pass without any."""

    def __init__(self, slots: Ints, wanted: Ints, make: Callable[[Ints], Adder]) -> None:
        """`slots` [T]: where each row's adapter lies, -1 = it has none; `wanted`: the rows that get logits."""
        self._adder = make(slots)
        self._wanted = make(slots[wanted])

    def __repr__(self) -> str:
        return f"AdapterRows({self._adder!r})"

    def keep_wanted(self) -> None:
        """From now on the pass has no rows but those that are wanted."""
        self._adder = self._wanted

    def add(self, out: torch.Tensor, inputs: torch.Tensor, lora: Lora) -> torch.Tensor:
        """Add what adapters make of inputs [..., T, inputs] to a map's outputs [..., T, outputs]; return these."""
        self._adder.add(out.view(-1, out.shape[-1]), inputs.reshape(-1, inputs.shape[-1]), lora)
        return out


class TorchAdder:
    """Implements `Adder` on any device, slot by slot."""

    def __init__(self, slots: Ints, device: torch.device) -> None:
        used = np.unique(slots[slots >= 0])
        self._segments = [(int(slot), to_device(np.flatnonzero(slots == slot), device)) for slot in used]

    def __repr__(self) -> str:
        return f"TorchAdder({', '.join(f'{len(rows)} of slot {slot}' for slot, rows in self._segments)})"

    def add(self, out: torch.Tensor, inputs: torch.Tensor, lora: Lora) -> None:
        """See `Adder`."""
        for slot, rows in self._segments:
            chosen, b = inputs[rows], lora.b[slot]
            for part, a in enumerate(lora.a[slot]):
                start, end = lora.starts[part], lora.starts[part + 1]
                out[:, start:end].index_add_(0, rows, chosen @ a.T @ b[:, start:end])


@dataclass(frozen=True, slots=True, eq=False)
class Lora:
    """What adapters have for one map, or a part of one, in all slots."""

    a: list[torch.Tensor]  # of each slot: [parts, rank, inputs]
    b: list[torch.Tensor]  # of each slot: [rank, outputs]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, a: list[torch.Tensor], b: list[torch.Tensor], each: AdaptedMap) -> Lora:
        """Return those of a whole map."""
        return cls(a, b, each.starts)

    def part(self, number: int) -> Lora:
        """Return those of one of its parts alone."""
        start, end = self.starts[number], self.starts[number + 1]
        return Lora([a[number : number + 1] for a in self.a], [b[:, start:end] for b in self.b], (0, end - start))
