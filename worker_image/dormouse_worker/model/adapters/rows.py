"""Which row of a pass has which adapter, and what that adds in torch. The kernels' own way is the same sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dormouse_worker.model.adapters.layout import AdaptedMap
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.sampling.gather import to_device

Segments = list[tuple[int, torch.Tensor]]  # slots that are used, each with its rows


class AdapterRows:
    """The adapters of one pass. Rows without one are not touched: their bits are those of a pass without any."""

    def __init__(self, slots: Ints, wanted: Ints, device: torch.device) -> None:
        """`slots` [T]: where each row's adapter lies, -1 = it has none; `wanted`: the rows that get logits."""
        self._segments = _segments(slots, device)
        self._wanted = _segments(slots[wanted], device)

    def __repr__(self) -> str:
        return f"AdapterRows({', '.join(f'{len(rows)} of slot {slot}' for slot, rows in self._segments)})"

    def keep_wanted(self) -> None:
        """From now on the pass has no rows but those that are wanted."""
        self._segments = self._wanted

    def add(self, out: torch.Tensor, inputs: torch.Tensor, lora: Lora) -> torch.Tensor:
        """Add what adapters make of inputs [..., T, inputs] to a map's outputs [..., T, outputs]; return these."""
        flat, given = out.view(-1, out.shape[-1]), inputs.reshape(-1, inputs.shape[-1])
        for slot, rows in self._segments:
            chosen, b = given[rows], lora.b[slot]
            for part, a in enumerate(lora.a[slot]):
                start, end = lora.starts[part], lora.starts[part + 1]
                flat[:, start:end].index_add_(0, rows, chosen @ a.T @ b[:, start:end])
        return out


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


def _segments(slots: Ints, device: torch.device) -> Segments:
    used = np.unique(slots[slots >= 0])
    return [(int(slot), to_device(np.flatnonzero(slots == slot), device)) for slot in used]
