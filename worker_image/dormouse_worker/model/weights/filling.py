"""Fills the weights' arena from storage, through a host copy or a few windows of host memory, and knows its checksums.

storage --read, summed up--> host copy | staging | the arena itself (one memory) --copied while still cached--> arena
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing

from dormouse_worker.common.errors import InsufficientMemory, ModelChanged
from dormouse_worker.model.device.arena import Arena
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.device.driver import DeviceOutOfMemory, MemoryDriver
from dormouse_worker.model.memory.arithmetic import gib
from dormouse_worker.model.tensors import Tensor, pointer_to
from dormouse_worker.model.weights.arrival import Tell
from dormouse_worker.model.weights.source import Contents, refusing_odd, with_extras
from dormouse_worker.model.weights.streaming import num_threads, stream
from dormouse_worker.model.weights.windows import Window, cut_windows

Place = Callable[[int, Window], Tensor]  # where in host memory the n-th thread reads a window to


class Filling:
    """Owns the windows, and the checksum of each tensor as it was read for the first time."""

    def __init__(self, device: Device, contents: Contents, window_bytes: int) -> None:
        self._device, self._contents, self._window_bytes = device, contents, window_bytes
        self.windows = cut_windows(contents.layout, window_bytes)
        self.checksums: Mapping[str, int] = {}  # {} = nothing was read yet

    def __repr__(self) -> str:
        return f"Filling({len(self.windows)} windows, {len(self.checksums)} checksums)"

    def read(self, arena: Arena, copy: Arena | None, tell: Tell) -> None:
        """Read everything into the mapped arena, and into `copy` if that is given.

        Raises ModelInvalid for a weight that is not finite, ModelChanged for a tensor that is not what was read the
        first time, InsufficientMemory for lack of host memory, and what the source raises.
        """
        if copy is not None:
            checksums = self._stream(arena, lambda _, window: bytes_of(copy, window.start, window.end), tell)
        elif self._device.copies is None:
            checksums = self._stream(arena, lambda _, window: bytes_of(arena, window.start, window.end), tell)
        else:
            checksums = self._read_staged(arena, self._device.copies, tell)
        for name, before in self.checksums.items():
            if checksums[name] != before:
                raise ModelChanged(f"{name} is not what was loaded before the sleep; restart the worker")
        self.checksums = checksums

    def _read_staged(self, arena: Arena, memory: MemoryDriver, tell: Tell) -> dict[str, int]:
        """Read through room for one window of each thread."""
        with closing(Arena("staging", memory, num_threads(self.windows) * self._window_bytes)) as staging:
            _take(staging)

            def place(thread: int, window: Window) -> Tensor:
                start = thread * self._window_bytes
                return bytes_of(staging, start, start + window.end - window.start)

            return self._stream(arena, place, tell)

    def _stream(self, arena: Arena, place: Place, tell: Tell) -> dict[str, int]:
        def deliver(window: Window, read: Tensor) -> None:
            target = bytes_of(arena, window.start, window.end)
            if pointer_to(read) != pointer_to(target):
                self._device.copy(target, read)

        contents = self._contents
        with contents.source.open() as opened:
            is_first = not self.checksums  # later the checksums say that it is what was looked at
            read = refusing_odd(opened, contents) if is_first else opened
            return stream(self.windows, with_extras(read, contents.extras), place, deliver, tell)


def bytes_of(arena: Arena, start: int, end: int) -> Tensor:
    """Return the bytes [start, end) of a mapped arena, uint8."""
    return arena.bytes(start, end)


def _take(staging: Arena) -> None:
    try:
        staging.prepare(staging.reserved_bytes)
        staging.map()
    except DeviceOutOfMemory as error:
        raise InsufficientMemory(
            f"reading the weights takes {gib(error.wanted_bytes)} of host memory, {gib(error.free_bytes)} are free; "
            "raise the memory limit"
        ) from error
