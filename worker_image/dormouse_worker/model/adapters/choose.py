"""Chooses who adds adapters to a map's outputs where torch computes the pass. The only place that does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from dormouse_worker.model.adapters.rows import Adder, TorchAdder
from dormouse_worker.model.adapters.triton_adapters import TritonAdapters, group_rows
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.machine import Machine, describe_machine
from dormouse_worker.model.attention.triton_backend import unsupported_machine


def choose_adder(device: torch.device) -> Callable[[Ints], Adder]:
    """Return who makes an adder of the slots [T] in which the adapters of a pass's rows lie, -1 = none."""
    if device.type == "cuda" and has_kernels(describe_machine(device)):
        return lambda slots: TritonAdapters(group_rows(slots, device))
    return partial(TorchAdder, device=device)


def has_kernels(machine: Machine) -> bool:
    """Return whether our kernels add adapters on this machine, as they attend there; else torch does."""
    return unsupported_machine(machine) is None
