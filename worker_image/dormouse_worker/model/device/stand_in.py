"""A GPU that is not there, for tests and demos: it computes on the processor, and its memory is books that are shared.

Weights, cache and activations lie in host memory; how much of them fits is what the device's books say (`ledger`), to
all processes that share it. So sleep, wake and what is refused are as on a GPU, and copies are real.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch

from dormouse_worker.common.errors import InsufficientMemory, InvalidSettings, WrongDevice
from dormouse_worker.common.host import Host
from dormouse_worker.common.stand_in import DEVICES_VARIABLE
from dormouse_worker.model.device.accounting import Change
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.device.host_driver import HostDriver
from dormouse_worker.model.device.ledger_driver import LedgerDriver
from dormouse_worker.model.device.ledger_file import MEMORY, DeviceShare

CONTEXT_BYTES = 16 << 20  # held from the opening to the process's end, asleep too: a GPU's context takes 300 MiB
SHARED_BYTES = 32 << 20  # larger copies are shared among torch's threads; of smaller ones there are several already


class StandInDevice:
    """Implements `Device`."""

    torch_device = torch.device("cpu")
    capability = None
    has_copy_engine = False  # the processor copies
    context = Change(CONTEXT_BYTES, is_certain=True)

    def __init__(self, name: str, memory: LedgerDriver, host: Host) -> None:
        """See `open_stand_in`."""
        self.name, self.memory = name, memory
        self.copies = HostDriver(host.available_bytes)

    def __repr__(self) -> str:
        return f"StandInDevice({self.name}, {self.memory!r}, {self.copies!r})"

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Device`."""
        copy_bytes(target, source)

    def counting_on(self, num_bytes: int) -> AbstractContextManager[None]:
        """See `Device`: its arenas do not count as host memory."""
        del num_bytes
        return nullcontext()

    def synchronize(self) -> None:
        """See `Device`: nothing is ever under way."""


def open_stand_in(
    host: Host, *, index: int = 0, wanted: str = "", budget_bytes: int = 0, environ: Mapping[str, str] = os.environ
) -> StandInDevice:
    """Return a device of those in the folder that the environment names, and take its context.

    `wanted` and `index` are as in `choose_device`. Raises InvalidSettings, WrongDevice, InsufficientMemory.
    """
    root = Path(environ[DEVICES_VARIABLE])
    name = choose_device(root, wanted, index)
    who = f"{socket.gethostname()}/{os.getpid()}"
    try:
        share = DeviceShare(root / name, who, context_bytes=CONTEXT_BYTES, budget_bytes=budget_bytes)
    except DeviceOutOfMemory as error:
        raise InsufficientMemory(f"{name} has no room for a context: {error}") from error
    return StandInDevice(name, LedgerDriver(share), host)


def choose_device(root: Path, wanted: str, index: int) -> str:
    """Return the name of a device's folder: the one at this index of those that are wanted; "" = of all there are.

    A comma divides several. Each may be wanted by its name alone, or as claims tell it: DRIVER/POOL/NAME. Raises
    InvalidSettings where there are too few, WrongDevice where the wanted one is not there; both name those that are.
    """
    names = sorted(path.parent.name for path in root.glob(f"*/{MEMORY}"))
    chosen = [part.strip().rpartition("/")[2] for part in wanted.split(",")] if wanted else names
    there = f"{DEVICES_VARIABLE} {root} has {', '.join(names) or 'none'}"
    if index >= len(chosen):
        of_those = f" of {wanted!r}" if wanted else ""
        raise InvalidSettings(f"{index + 1} devices are wanted{of_those}; {there}")
    if chosen[index] not in names:
        raise WrongDevice(f"the device {wanted!r} is wanted; {there}")
    return chosen[index]


def copy_bytes(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy within host memory, both uint8 [n]."""
    if len(target) < SHARED_BYTES:
        np.copyto(target.numpy(), source.numpy())
    else:
        target.copy_(source)
