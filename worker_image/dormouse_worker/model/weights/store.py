"""The weights of one rank: an arena on the device, a copy of it in host memory, and the way back from storage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dormouse_worker.common.commands import WEIGHTS
from dormouse_worker.common.errors import InsufficientMemory, WeightsDamaged
from dormouse_worker.model.checksum import checksum
from dormouse_worker.model.device.arena import Arena
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.memory.arithmetic import gib
from dormouse_worker.model.tensors import Tensor
from dormouse_worker.model.weights.arrival import Arrival, Tell
from dormouse_worker.model.weights.filling import Filling, bytes_of
from dormouse_worker.model.weights.layout import Slot
from dormouse_worker.model.weights.source import Contents, LoadReport
from dormouse_worker.model.weights.windows import WINDOW_BYTES, Window

SLICE_BYTES = 256 << 20  # copies that nobody reads for are longer: each begins and ends with all threads waiting


class WeightStore:
    """Owns the memory of all parameters and buffers of a module. Implements `SleepPart`.

                 device with memory of its own              device that has one memory with its host
    awake        arena, host copy (or none)                 arena
    level 1      host copy                                  arena: there is nowhere else to keep it
    level 2      nothing; read from the source again        nothing; read from the source again

    A wake from level 2 reads through a few windows of host memory and leaves no host copy: taking the memory for one,
    and on CUDA pinning it, costs more than the copy to the device. The next sleep at level 1 copies out and keeps that.
    The small tensors that no source has stay in host memory all the time.
    """

    tag = WEIGHTS

    def __init__(
        self,
        device: Device,
        contents: Contents,
        *,
        keeps_host_copy: bool,
        window_bytes: int = WINDOW_BYTES,
        slice_bytes: int = SLICE_BYTES,
        chunk_bytes: int | None = None,
    ) -> None:
        """Reserve address ranges, which costs no memory; `load` comes next. Raises OSError."""
        self.layout = contents.layout
        self.is_asleep = True
        self._device = device
        self._contents = contents
        self._slots = {slot.name: slot for slot in self.layout.slots}
        self._level = 2  # the deepest level since it was awake
        self._next_level = 0  # what `save` announced
        self._is_fresh_copy = False  # the host copy was made by the last `save`
        self._arrival: Arrival | None = None  # of what `restore` began
        self._arena = Arena(WEIGHTS, device.memory, self.num_bytes, chunk_bytes=chunk_bytes)
        try:
            self._copy = None
            if device.copies is not None:
                self._copy = Arena("host copy", device.copies, self.num_bytes, chunk_bytes=chunk_bytes)
        except BaseException:
            self._arena.close()
            raise
        self._keeps_copy = keeps_host_copy and self._copy is not None
        self._window_bytes, self._slice_bytes = window_bytes, slice_bytes
        self._filling = Filling(device, contents, window_bytes)

    def __repr__(self) -> str:
        state = f"asleep at level {self._level}" if self.is_asleep else "awake"
        return f"WeightStore({len(self.layout.slots)} tensors, {state}, {self._arena!r}, {self._copy!r})"

    @property
    def stored_slots(self) -> tuple[Slot, ...]:
        """Return what the source has, in the order of the memory."""
        return tuple(slot for slot in self.layout.slots if slot.name not in self._contents.extras)

    @property
    def num_bytes(self) -> int:
        """Return the size of all tensors, each once, with what lies between them."""
        return self.layout.num_bytes

    @property
    def host_copy_bytes(self) -> int:
        """Return the host memory that holds a copy of the weights."""
        return 0 if self._copy is None else self._copy.size_bytes

    @property
    def checksums(self) -> Mapping[str, int]:
        """Return each tensor's checksum as it was read for the first time."""
        return self._filling.checksums

    @property
    def wake_bytes(self) -> int:
        """See `SleepPart`."""
        return 0 if self._arena.is_mapped else self._arena.whole_bytes(self.num_bytes)

    def load(self, load_format: str, clock: Callable[[], float] = time.monotonic) -> LoadReport:
        """Take the memory and fill it for the first time.

        Raises InsufficientMemory, or what the source raises: nothing is held then but the address ranges.
        """
        started_s = clock()
        self.restore()
        try:
            self.arrive()
        except BaseException:
            self.drop()
            raise
        self.settle()
        return LoadReport(self.num_bytes, clock() - started_s, load_format, self._contents.source.path)

    def tensor(self, name: str) -> Tensor:
        """Return the view that is the tensor of this name. Only while the memory is mapped."""
        slot = self._slots[self.layout.aliases.get(name, name)]
        return self._arena.tensor(slot.offset, slot.shape, slot.dtype)

    def span(self, names: Sequence[str]) -> Tensor:
        """Return one view of tensors that lie behind each other, joined along their first dimension."""
        first, *others = (self._slots[name] for name in names)
        num_rows = first.shape[0] + sum(slot.shape[0] for slot in others)
        return self._arena.tensor(first.offset, (num_rows, *first.shape[1:]), first.dtype)

    def iter_host(self) -> Iterator[tuple[Window, Tensor]]:
        """Yield every window with its contents in host memory, uint8, valid until the next. Only while awake."""
        host = self._arena if self._copy is None else self._copy
        staging = None if host.is_mapped else bytes_of(self._arena, 0, 0).new_empty(self._window_bytes, device="cpu")
        for window in self._filling.windows:
            if staging is None:
                yield window, bytes_of(host, window.start, window.end)
            else:
                contents = staging[: window.end - window.start]
                self._device.copy(contents, bytes_of(self._arena, window.start, window.end))
                yield window, contents

    def check_integrity(self) -> None:
        """Compare what lies on the device with what was loaded. Raises WeightsDamaged naming the first that differs."""
        for name, slot in self._slots.items():
            if checksum(self._arena.bytes(slot.offset, slot.offset + slot.num_bytes)) != self.checksums[name]:
                raise WeightsDamaged(
                    f"{name} is not what was loaded: the device's memory is damaged; restart the worker"
                )

    def save(self, level: int) -> None:
        """See `SleepPart`."""
        if level == 1 and not self.is_asleep and self._copy is not None and not self._copy.is_mapped:
            self._take_copy("use level 2")
            self._is_fresh_copy = True
            try:
                self._copy_all(self._copy, self._arena, _ignore)
            except BaseException:
                self.forget()
                raise
        self._next_level = level

    def forget(self) -> None:
        """See `SleepPart`."""
        self._next_level = 0
        if self._is_fresh_copy:
            self._drop_copy()

    def drop(self) -> int:
        """See `SleepPart`."""
        self._stop_arriving()
        self._level, self._next_level = max(self._level, self._next_level), 0
        self._is_fresh_copy = False
        self.is_asleep = True
        if self._level == 1 and self._copy is None:
            return 0
        if self._level == 2:
            self._drop_copy()
        return self._arena.unmap()

    def reserve(self) -> None:
        """See `SleepPart`. Raises InsufficientMemory if host memory for the copy lacks."""
        if self._arena.is_mapped:
            return
        self._arena.prepare(self.num_bytes)
        try:
            is_first, is_lean = not self._filling.checksums, not self._contents.source.held_bytes
            if self._keeps_copy and is_first and is_lean:  # else the next sleep makes the copy: now memory holds them
                self._take_copy("set keepHostCopy: false")
        except BaseException:
            self._arena.cancel()
            raise

    def cancel(self) -> None:
        """See `SleepPart`."""
        if not self._arena.is_mapped:
            self._arena.cancel()
        if self._level == 2:
            self._drop_copy()

    def restore(self) -> None:
        """See `SleepPart`. Raises InsufficientMemory, or ModelChanged and what else the source raises.

        Where a copy engine copies, only the memory is there when this returns: see `wait_for` and `arrive`.
        """
        if self._arena.is_mapped:
            self.is_asleep = False
            return
        try:
            self.reserve()
            self._arena.map()
            if self._device.has_copy_engine:
                self._arrival = Arrival(self._fill)
                self._arrival.start()
            else:
                self._fill(_ignore)
        except DeviceOutOfMemory as error:
            self._fall_back()
            raise InsufficientMemory(
                f"the weights take {gib(error.wanted_bytes)} on the device, {gib(error.free_bytes)} are free; "
                "free memory there, raise its limit, or use a smaller or quantized model"
            ) from error
        except BaseException:
            self._fall_back()
            raise
        self.is_asleep = False

    @property
    def is_arriving(self) -> bool:
        """See `SleepPart`."""
        return self._arrival is not None

    def wait_for(self, tensors: Iterable[Tensor]) -> None:
        """Return when the contents of these views are there. Raises what `arrive` would."""
        if self._arrival is not None:
            self._arrival.wait_for(max(map(self._arena.end_of, tensors), default=0))

    def arrive(self) -> None:
        """See `SleepPart`."""
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            arrival.finish()

    def settle(self) -> None:
        """See `SleepPart`."""
        if self.is_asleep:
            return
        self._level = 0
        if not self._keeps_copy:
            self._drop_copy()

    def close(self) -> None:
        """Give memory and ranges back; the module must not be used any more."""
        self._stop_arriving()
        self._arena.close()
        if self._copy is not None:
            self._copy.close()

    def _stop_arriving(self) -> None:
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            arrival.stop()

    def _fall_back(self) -> None:
        self._arena.unmap()
        if self._level == 2:
            self._drop_copy()

    def _take_copy(self, remedy: str) -> None:
        assert self._copy is not None, "only a device with memory of its own has a copy beside it"
        if self._copy.is_mapped:
            return
        try:
            self._copy.prepare(self.num_bytes)
            self._copy.map()
        except DeviceOutOfMemory as error:
            raise InsufficientMemory(
                f"a copy of the weights takes {gib(error.wanted_bytes)} of host memory, {gib(error.free_bytes)} are "
                f"free; raise the memory limit or {remedy}"
            ) from error

    def _drop_copy(self) -> None:
        self._is_fresh_copy = False
        if self._copy is not None:
            self._copy.unmap()

    def _fill(self, tell: Tell) -> None:
        if self._level == 2:
            self._filling.read(self._arena, self._copy if self.host_copy_bytes else None, tell)
        elif self._copy is not None:
            self._copy_all(self._arena, self._copy, tell)

    def _copy_all(self, target: Arena, source: Arena, tell: Tell) -> None:
        for start in range(0, self.num_bytes, self._slice_bytes):
            end = min(start + self._slice_bytes, self.num_bytes)
            self._device.copy(bytes_of(target, start, end), bytes_of(source, start, end))
            tell(end)


def _ignore(_: int) -> None:
    """Nobody waits for a part."""
