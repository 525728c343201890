"""How much of a device's memory is ours, whoever else uses it.

    own = arenas            known exactly: our driver counts its chunks
        + torch's pool      known exactly: its allocator counts what it reserved
        + everything else   context, libraries' code, graphs, communicators: measured, each around the one call that
                            makes it, as the change of what is free on the whole device

Only the last line sees neighbours. What is read is `free + arenas + torch's pool`, so that our own known moves cancel
out; it is read until two readings agree; and what can be unmade is made again until two makings cost the same. NVML
tells the sum directly where it shows this process, which inside a container it usually does not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol, runtime_checkable

DEVICE_FREE_MEMORY, NVML = "device free memory", "nvml"  # ways to measure
MAX_READINGS = 8  # of one quantity until two in a row agree
MAX_MAKINGS = 5  # of one thing until two cost the same
CONTEXT_BYTES = 512 << 20  # what a context takes where nobody can measure it
LIBRARIES_BYTES = 256 << 20  # likewise the code that the first forward pass loads
MAX_LIBRARIES_BYTES = 1 << 30  # a first forward pass that cost more was not alone
TOLERATED_BYTES = 64 << 20  # by which NVML and the sum of the parts may differ without a word

logger = logging.getLogger(__name__)

Read = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Change:
    """What something costs; `is_certain` False = a neighbour moved meanwhile, and this is the best guess."""

    num_bytes: int
    is_certain: bool


@runtime_checkable
class DeviceMemory(Protocol):
    """The part of a driver that is asked here."""

    @property
    def total_bytes(self) -> int:
        """Return the device's memory."""

    @property
    def used_bytes(self) -> int:
        """Return what our arenas hold."""

    def free_bytes(self) -> int:
        """Return what is free on the whole device."""


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """One device at one moment."""

    total_bytes: int
    free_bytes: int
    arena_bytes: int
    torch_bytes: int
    other_bytes: int  # context, libraries, graphs, communicators
    measured_by: str  # how the other bytes are known

    @property
    def own_bytes(self) -> int:
        """Return what this process holds."""
        return self.arena_bytes + self.torch_bytes + self.other_bytes


def measure_around(read: Read, make: Callable[[], object], unmake: Callable[[], object] | None = None) -> Change:
    """Make something; return by how much the reading fell, which may be negative. It is there afterwards, made once.

    With `unmake` it is made again until two makings agree, so that a neighbour who moved during one of them is found
    out; without, a neighbour who moved while it was made and was quiet before and after cannot be told apart.
    """
    costs: list[int] = []
    for making in range(MAX_MAKINGS):
        before_bytes, was_quiet = read_quietly(read)
        make()
        after_bytes = read()  # the first reading is the nearest to the call, also if a neighbour moves right after it
        cost_bytes = before_bytes - after_bytes
        is_quiet = was_quiet and read() == after_bytes and cost_bytes >= 0
        if unmake is None or (is_quiet and cost_bytes in costs):
            return Change(cost_bytes, is_quiet)
        costs.append(cost_bytes)
        if making < MAX_MAKINGS - 1:
            unmake()
    return Change(int(median(costs)), is_certain=False)


def read_quietly(read: Read) -> tuple[int, bool]:
    """Read until two readings in a row agree; return the last, and whether it was agreed upon."""
    last = read()
    for _ in range(MAX_READINGS):
        now = read()
        if now == last:
            return now, True
        last = now
    return last, False


class DeviceAccount:
    """Owns what is known of this process's memory on one device besides arenas and torch's pool."""

    def __init__(self, memory: DeviceMemory, torch_bytes: Read, nvml_own_bytes: Callable[[], int | None]) -> None:
        """`torch_bytes` tells what torch has reserved; `nvml_own_bytes` what NVML counts as ours, None if hidden."""
        self._memory = memory
        self._torch_bytes = torch_bytes
        self._nvml_own_bytes = nvml_own_bytes
        self._parts: dict[str, Change] = {}
        self._told_bytes = 0  # by how much NVML differed when that was last said

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {change.num_bytes}" for name, change in self._parts.items())
        return f"DeviceAccount({parts or 'nothing'})"

    def add(self, name: str, change: Change) -> None:
        """Note what a part costs, in place of what was noted before."""
        self._parts[name] = change
        if not change.is_certain:
            logger.warning("%s: taken as %d bytes; a neighbour moved meanwhile", name, change.num_bytes)

    def forget(self, name: str) -> None:
        """Count a part no more that was unmade; nothing happens to one that was never made."""
        self._parts.pop(name, None)

    def measure(
        self,
        name: str,
        make: Callable[[], object],
        unmake: Callable[[], object] | None = None,
        *,
        guess_bytes: int = 0,
        max_bytes: int | None = None,
    ) -> Change:
        """Make a part and note what it costs; where that is less than nothing or above `max_bytes`, the guess."""
        change = measure_around(self._unexplained_bytes, make, unmake)
        if not 0 <= change.num_bytes <= (self._memory.total_bytes if max_bytes is None else max_bytes):
            change = Change(guess_bytes, is_certain=False)
        self.add(name, change)
        return change

    def snapshot(self) -> MemorySnapshot:
        """Return how things stand."""
        arena_bytes, torch_bytes = self._memory.used_bytes, self._torch_bytes()
        other_bytes, measured_by = sum(part.num_bytes for part in self._parts.values()), DEVICE_FREE_MEMORY
        shown_bytes = self._nvml_own_bytes()
        if shown_bytes is not None:
            by_nvml = max(0, shown_bytes - arena_bytes - torch_bytes)
            self._tell_difference(by_nvml - other_bytes, by_nvml)
            other_bytes, measured_by = by_nvml, NVML
        return MemorySnapshot(
            total_bytes=self._memory.total_bytes,
            free_bytes=self._memory.free_bytes(),
            arena_bytes=arena_bytes,
            torch_bytes=torch_bytes,
            other_bytes=other_bytes,
            measured_by=measured_by,
        )

    def _tell_difference(self, differ_bytes: int, by_nvml: int) -> None:
        """Say that NVML counts otherwise; again only when it differs by so much more or less."""
        if abs(differ_bytes - self._told_bytes) > TOLERATED_BYTES:
            self._told_bytes = differ_bytes
            logger.warning("%r: NVML counts %d bytes instead; taken", self, by_nvml)

    def _unexplained_bytes(self) -> int:
        """Return what falls only when something is made that neither arenas nor torch count, or a neighbour takes."""
        return self._memory.free_bytes() + self._memory.used_bytes + self._torch_bytes()
