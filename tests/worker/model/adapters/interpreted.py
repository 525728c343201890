"""Runs the kernels for adapters under Triton's interpreter; prints what went wrong, by case, as JSON.

A process of its own, because TRITON_INTERPRET decides for all kernels when triton is imported.
"""

from __future__ import annotations

import json

import torch

from dormouse_worker.model.adapters.rows import Lora
from dormouse_worker.model.adapters.triton_adapters import TritonAdapters, group_rows
from tests.worker.model.adapters.triton_cases import CASES, CPU, Case, World


def _error(case: Case) -> str:
    world = World(case)
    expected, out = world.expected(), world.out.clone()
    adder = TritonAdapters(group_rows(world.slots, CPU), widens=True)
    adder.add(out, world.inputs, world.lora)
    rows = torch.from_numpy(world.slots < 0)
    if not torch.equal(out[rows], world.out[rows]):
        return "a row without an adapter was touched"
    tolerance = 1e-5 if case.dtype is torch.float32 else 2e-2
    worst = (out.float() - expected).abs().max().item()
    if worst > tolerance:
        return f"off by {worst}"
    return _alone(world, out) or _part(world, out)


def _alone(world: World, together: torch.Tensor) -> str:
    """Return "" if the first and last rows have the bits that they have in passes of their own."""
    for row in {0, 1, len(world.slots) - 2, len(world.slots) - 1}:
        out = world.out[row : row + 1].clone()
        adder = TritonAdapters(group_rows(world.slots[row : row + 1], CPU), widens=True)
        adder.add(out, world.inputs[row : row + 1], world.lora)
        if not torch.equal(out[0], together[row]):
            return f"row {row} depends on its batch"
    return ""


def _part(world: World, together: torch.Tensor) -> str:
    """Return "" if the last part of a joined map has alone what it has in the map."""
    last = len(world.case.outputs) - 1
    start = world.lora.starts[last]
    out, lora = world.out[:, start:].clone(), world.lora.part(last)
    assert isinstance(lora, Lora)
    TritonAdapters(group_rows(world.slots, CPU), widens=True).add(out, world.inputs, lora)
    return "" if torch.equal(out, together[:, start:]) else "a part differs from the joined map's"


def main() -> None:
    """Run all cases."""
    torch.set_num_threads(1)
    print(json.dumps({case.name: _error(case) for case in CASES}))


if __name__ == "__main__":
    main()
