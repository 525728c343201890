"""The adapters of one rank: a copy of each in host memory, and slots on the device, some of which are filled.

    host copies  [max_cpu_loras]   what `add` has read; `put` copies one to a slot
    slots        [max_loras]       an arena: its addresses stay over every sleep, and kernels and graphs keep them

Weights never change; these do. So they sleep as a part of their own, with the tag of the weights: asleep the slots are
gone, and who computes next fills them again; at level 1 they stay where the device has one memory with its host. At
level 2 the host copies are gone, too, and a wake reads them again: an adapter whose files are gone or changed is lost
then, by name, and the base serves on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.common.commands import WEIGHTS
from dormouse_worker.common.errors import AdapterLimit, AdapterNotFound, InsufficientMemory
from dormouse_worker.model.adapters.coming import ComingAdapter, Found, Place
from dormouse_worker.model.adapters.known import KnownAdapter, read_again
from dormouse_worker.model.adapters.layout import AdapterLayout
from dormouse_worker.model.adapters.rows import Lora
from dormouse_worker.model.adapters.virtual_rows import VirtualRows
from dormouse_worker.model.device.arena import Arena
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.memory.arithmetic import gib
from dormouse_worker.model.tensors import pointer_to
from dormouse_worker.model.vision.placed import ImageRows


class AdapterStore:
    """Owns the memory of all adapters. Implements `SleepPart`."""

    tag = WEIGHTS

    def __init__(
        self,
        device: Device,
        layout: AdapterLayout,
        *,
        num_slots: int,
        num_copies: int,
        max_rank: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take all the memory that there will ever be, and touch it: whoever measures this process shall see it.

        Raises InsufficientMemory.
        """
        self.layout = layout
        self.num_slots, self.max_rank = num_slots, max_rank
        self.is_asleep = True
        self.ranks = np.zeros(num_slots, dtype=np.int64)  # of what lies in each slot; kernels read it
        self._device = device
        self._num_copies = num_copies
        self._known: dict[str, KnownAdapter] = {}
        self._level = self._next_level = 0
        self._copies: torch.Tensor | None = None
        self._coming: ComingAdapter | None = None
        self._clock = clock
        self._stuck: list[ComingAdapter] = []  # whose storage did not answer
        self._arena = Arena("adapters", device.memory, num_slots * layout.slot_bytes)
        try:
            self.restore()
        except BaseException:
            self._arena.close()
            raise
        self._arena.tensor(0, (self._num_bytes,), torch.uint8).zero_()
        self.settle()

    def __repr__(self) -> str:
        return f"AdapterStore({len(self._known)} adapters, {self._arena!r})"

    @property
    def infos(self) -> dict[str, AdapterInfo]:
        """Return the adapters that can be used, by digest."""
        return {digest: self._info(digest) for digest, known in self._known.items() if not known.lost}

    @property
    def lost(self) -> dict[str, str]:
        """Return the adapters that cannot be used any more, each with the reason."""
        return {digest: known.lost for digest, known in self._known.items() if known.lost}

    @property
    def address(self) -> int:
        """Return where the first slot begins; the same over every sleep."""
        return pointer_to(self._arena.bytes(0, 1))

    def add(self, path: Path, digest: str = "") -> AdapterInfo:
        """Read an adapter into host memory; one that is there already is left as it is. Return what it is.

        `digest` = what it has to be, "" = anything. Raises AdapterNotFound, AdapterInvalid, AdapterLimit, and nothing
        has changed then.
        """
        info = self.advance(path, digest, math.inf)
        assert info is not None, "there was all the time"
        return info

    def advance(self, path: Path, digest: str, seconds: float) -> AdapterInfo | None:
        """Do for so long what `add` does; return None until that is done. One adapter comes after the other.

        Returns some milliseconds later at the latest, whatever the storage does.
        """
        if digest in self.infos:
            return self._info(digest)
        if self._coming is None:
            self._check_storage(path)
            place = self._free_place()
            self._coming = ComingAdapter(path, self.layout, place, max_rank=self.max_rank, clock=self._clock)
        assert self._coming.path == path, "one that is begun is asked for until it is done"
        try:
            found = self._coming.advance(seconds)
        except BaseException:
            self._stuck.append(self._coming)
            self._coming = None
            raise
        if found is None:
            return None
        self._coming = None
        return self._take(path, digest, found)

    def remove(self, digest: str) -> None:
        """Forget an adapter, which no pass uses any more; nothing happens if it is not known."""
        self._known.pop(digest, None)

    def put(self, slot: int, digest: str) -> None:
        """Let an adapter lie in a slot; no pass that is under way uses what lay there."""
        known = self._known[digest]
        assert self._copies is not None, "asleep"
        assert not known.lost, known.lost
        self._device.synchronize()
        self._device.copy(self._slot(slot), self._copies[known.place])
        self.ranks[slot] = known.rank

    def loras(self) -> dict[tuple[str, ...], Lora]:
        """Return what each map's adapters are, by the names of its modules: views that stay right over every sleep."""
        slots, layout = [self._slot(number) for number in range(self.num_slots)], self.layout
        return {
            each.modules: Lora.of(
                [layout.a_of(slot, each) for slot in slots], [layout.b_of(slot, each) for slot in slots], each
            )
            for each in layout.maps
        }

    def virtual_rows(self, runs: Iterable[VirtualRows]) -> tuple[ImageRows, ...]:
        """Return the vectors of soft prompts that stand in a pass."""
        return tuple(
            ImageRows(run.start, self.layout.prompt_of(self._slot(run.slot), run.first, run.first + run.count))
            for run in runs
        )

    def keys_of(self, slot: int, num_tokens: int) -> torch.Tensor:
        """Return keys and values that the adapter in a slot brings, [num_tokens, layers, 2, heads, head size]."""
        return self.layout.keys_of(self._slot(slot), num_tokens)

    @property
    def wake_bytes(self) -> int:
        """See `SleepPart`."""
        return 0 if self._arena.is_mapped else self._arena.whole_bytes(self._num_bytes)

    def save(self, level: int) -> None:
        """See `SleepPart`. The host copies are there already."""
        self._next_level = level

    def forget(self) -> None:
        """See `SleepPart`."""
        self._next_level = 0

    def drop(self) -> int:
        """See `SleepPart`."""
        assert self._coming is None, "whoever reads one has done so before"
        self._level, self._next_level = max(self._level, self._next_level), 0
        self.is_asleep = True
        if self._level == 1 and self._device.copies is None:
            return 0
        if self._level == 2:
            self._copies = None
        return self._arena.unmap()

    def reserve(self) -> None:
        """See `SleepPart`."""
        if not self._arena.is_mapped:
            self._arena.prepare(self._num_bytes)

    def cancel(self) -> None:
        """See `SleepPart`."""
        if not self._arena.is_mapped:
            self._arena.cancel()

    def restore(self) -> None:
        """See `SleepPart`. An adapter that cannot be brought back is lost, which is no reason to sleep on."""
        if self._arena.is_mapped:
            self.is_asleep = False
            return
        try:
            self.reserve()
            self._arena.map()
            self._bring_back()
        except (DeviceOutOfMemory, MemoryError) as error:
            self._arena.unmap()
            raise InsufficientMemory(
                f"{self.num_slots} slots and {self._num_copies} host copies of {gib(self.layout.slot_bytes)} each for "
                "adapters do not fit; lower max_loras, max_cpu_loras or max_lora_rank"
            ) from error
        except BaseException:
            self._arena.unmap()
            raise
        self.is_asleep = False

    @property
    def is_arriving(self) -> bool:
        """See `SleepPart`."""
        return False

    def arrive(self) -> None:
        """See `SleepPart`. All is there when `restore` returns."""

    def settle(self) -> None:
        """See `SleepPart`."""
        if not self.is_asleep:
            self._level = 0

    def close(self) -> None:
        """Give memory and range back."""
        if self._coming is not None:
            self._coming.leave()
        self._copies = None
        self._arena.close()

    def _check_storage(self, path: Path) -> None:
        """Raise AdapterNotFound where somebody is still stuck in the same files: another would be, too."""
        self._stuck = [each for each in self._stuck if each.is_stuck]
        if (stuck := next((each for each in self._stuck if each.path == path), None)) is not None:
            raise stuck.stall()

    def _take(self, path: Path, digest: str, found: Found) -> AdapterInfo:
        """Note what was read, if it is what was asked for. Raises as `add`."""
        if digest not in {"", found.digest}:
            raise AdapterNotFound(f"{path}: its digest is {found.digest}, not {digest}; its files changed")
        if found.digest not in self.infos:
            if found.place is None:
                what = f"{len(self.infos)} adapters are loaded; max_cpu_loras is {self._num_copies}"
                raise AdapterLimit(f"{what}: remove one, or raise it")
            self._known[found.digest] = KnownAdapter.of(path, found, found.place.number)
        return self._info(found.digest)

    @property
    def _num_bytes(self) -> int:
        return self.num_slots * self.layout.slot_bytes

    def _info(self, digest: str) -> AdapterInfo:
        known = self._known[digest]
        return AdapterInfo(
            digest,
            known.rank,
            self.layout.slot_bytes,
            invocation=known.invocation,
            num_virtual_tokens=known.num_virtual_tokens,
            has_keys=known.has_keys,
        )

    def _slot(self, number: int) -> torch.Tensor:
        slot: torch.Tensor = self._arena.bytes(number * self.layout.slot_bytes, (number + 1) * self.layout.slot_bytes)
        return slot

    def _free_place(self) -> Place | None:
        """Return a host copy that nobody has; what is lost needs none."""
        assert self._copies is not None, "asleep"
        taken = {known.place for known in self._known.values() if not known.lost}
        free = (
            number
            for number in range(self._num_copies)
            if number not in taken and not any(each.holds(number) for each in self._stuck)
        )
        return next((Place(number, self._copies[number]) for number in free), None)

    def _bring_back(self) -> None:
        """Read the host copies again where they are gone."""
        if self._copies is None:
            self._copies = torch.empty(self._num_copies, self.layout.slot_bytes, dtype=torch.uint8)
            self._copies.zero_()
            for digest, known in tuple(self._known.items()):
                lost = read_again(known, self.layout, self._copies[known.place], max_rank=self.max_rank)
                self._known[digest] = replace(known, lost=lost)
