"""What the kernels for adapters are asked to add, and what torch adds in its place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dormouse_worker.model.adapters.layout import AdaptedMap
from dormouse_worker.model.adapters.rows import Lora, TorchAdder

CPU = torch.device("cpu")
FEW, MANY = (1, -1, 0, 0), (2,) * 17 + (-1, 0, 1, 2)


@dataclass(frozen=True)
class Case:
    """Rows with the slots of their adapters, and one map."""

    name: str
    slots: tuple[int, ...] = MANY
    rank: int = 8
    num_inputs: int = 96
    outputs: tuple[int, ...] = (80, 16, 16)
    dtype: torch.dtype = torch.float32
    num_slots: int = 3


CASES = (
    Case("one part", outputs=(72,)),
    Case("joined parts, rows of three adapters"),
    Case("decode", slots=FEW, rank=16, num_inputs=130, outputs=(129,)),
    Case("the least rank", rank=4, num_inputs=40, outputs=(8, 8)),
    Case("a rank of several steps", slots=FEW, rank=132, outputs=(40,)),
    Case("one slot", slots=(0, -1, 0), num_slots=1),
    Case("no row has one", slots=(-1, -1)),
    Case("bfloat16", slots=FEW, rank=16, dtype=torch.bfloat16),
)


class World:
    """The tensors of a case: slots lie behind each other in one arena, as a store has them."""

    def __init__(self, case: Case, device: torch.device = CPU) -> None:
        self.case = case
        generator = torch.Generator().manual_seed(7)
        starts = tuple(int(start) for start in np.cumsum((0, *case.outputs)))
        num_a = len(case.outputs) * case.rank * case.num_inputs
        size = num_a + case.rank * starts[-1] + 8
        arena = (torch.randn(case.num_slots * size, generator=generator) / case.num_inputs**0.5).to(case.dtype)
        self.arena = arena.to(device)
        slots = [self.arena[number * size : (number + 1) * size] for number in range(case.num_slots)]
        a = [slot[:num_a].view(len(case.outputs), case.rank, case.num_inputs) for slot in slots]
        b = [slot[num_a:][: case.rank * starts[-1]].view(case.rank, starts[-1]) for slot in slots]
        shares = (None,) * len(case.outputs)
        self.lora = Lora.of(a, b, AdaptedMap(("map",) * len(case.outputs), case.num_inputs, starts, shares, 0, 0))
        self.slots = np.array(case.slots)
        self.inputs = torch.randn(len(case.slots), case.num_inputs, generator=generator).to(case.dtype).to(device)
        self.out = torch.randn(len(case.slots), starts[-1], generator=generator).to(case.dtype).to(device)

    def expected(self) -> torch.Tensor:
        """Return what torch adds in float32."""
        wide = [[each.float() for each in half] for half in (self.lora.a, self.lora.b)]
        out = self.out.float().clone()
        TorchAdder(self.slots, self.out.device).add(out, self.inputs.float(), Lora(*wide, self.lora.starts))
        return out
