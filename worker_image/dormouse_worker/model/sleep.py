"""Sleep and wake as two-phase operations over the parts of a worker's memory. Knows no device and no RPC.

What can fail is done while everything can still be taken back:

    sleep   save every part (copies out, host memory)         -> then drop every part, which cannot fail
    wake    reserve every part (all physical memory at once)  -> restore every part -> finish (verify) -> settle
            what a copy engine restores may go on while `finish` computes with what is there already

A failure at any point leaves every part as it was before the call, and nothing is held twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from dormouse_worker.common.errors import InsufficientMemory
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.stopwatch import Stopwatch


class SleepPart(Protocol):
    """The memory of one tag, or a share of it.

                                       .-------------- drop --------------.
                                       v                                  |
    awake --save--> saved --drop--> asleep --reserve--> reserved --restore--> restored --settle--> awake
      ^--- forget ---'                 ^---- cancel ----'

    A part that sleeps may be saved and dropped again at a deeper level; it stays asleep, and never gets a lesser one.
    """

    @property
    def tag(self) -> str:
        """Return the name by which callers choose it."""

    @property
    def is_asleep(self) -> bool:
        """Return whether it must be restored before use; reserved it still is."""

    @property
    def wake_bytes(self) -> int:
        """Return how much of the device's memory `reserve` takes, in whole pages; 0 where it takes other memory."""

    def save(self, level: int) -> None:
        """Do everything about sleeping at this level that may fail; the part stays usable. An error changes nothing.

        Raises InsufficientMemory with the numbers if host memory for a copy is missing.
        """

    def forget(self) -> None:
        """Take `save` back."""

    def drop(self) -> int:
        """Give the device memory back; return how many bytes. Must not fail.

        What was restored and not settled falls back to where it was, without a `save`.
        """

    def reserve(self) -> None:
        """Take all the physical memory that `restore` needs. Raises DeviceOutOfMemory with nothing held."""

    def cancel(self) -> None:
        """Take `reserve` back; nothing happens where nothing is reserved."""

    def restore(self) -> None:
        """Bring the contents back, or begin to, see `arrive`.

        Any error leaves the part asleep, with nothing reserved, and able to try again.
        """

    @property
    def is_arriving(self) -> bool:
        """Return whether `restore` goes on beside its caller; who needs the contents may wait for parts of them."""

    def arrive(self) -> None:
        """Wait until all contents are back. Raises what `restore` would raise; `drop` comes next then."""

    def settle(self) -> None:
        """Let go of what was only kept in case the wake fails. Must not fail; nothing happens to a part long awake."""


class Promise(Protocol):
    """The device's word: see `MemoryDriver.promised`."""

    def __call__(self, num_bytes: int, /) -> AbstractContextManager[None]:
        """Raise DeviceOutOfMemory, with nothing taken, unless so much is there for the block."""


class SleepCycle:
    """Owns nothing but the order in which parts sleep and wake, and which of them are reserved."""

    def __init__(self, parts: Sequence[SleepPart], promised: Promise) -> None:
        """Take the parts in the order in which they wake; `promised` is asked for all that they reserve, at once."""
        self._parts = tuple(parts)
        self._promised = promised
        self._reserved: tuple[SleepPart, ...] = ()

    def __repr__(self) -> str:
        return f"SleepCycle(asleep={self.sleeping_tags}, reserved={_tags(self._reserved)})"

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """Return what sleeps, in the order in which it wakes."""
        return _tags(part for part in self._parts if part.is_asleep)

    def sleep(self, level: int, tags: Collection[str], watch: Stopwatch) -> int:
        """Put the parts with these tags to sleep; return the bytes given back.

        Gives back what is reserved. Raises what saving raises; everything else is as before then.
        """
        self.cancel()
        parts = [part for part in self._parts if part.tag in tags]
        with watch.phase("save"):
            _save_all(parts, level)
        with watch.phase("drop"):
            return sum(part.drop() for part in parts)

    def prepare(self, tags: Collection[str]) -> int:
        """Reserve what waking these tags takes; return 0, or how many bytes are missing, and nothing is reserved.

        A reservation of other tags is given up for it.
        """
        parts = tuple(part for part in self._parts if part.tag in tags and part.is_asleep)
        if parts != self._reserved:
            self.cancel()
            missing_bytes = _reserve_all(parts, self._promised)
            if missing_bytes:
                return missing_bytes
            self._reserved = parts
        return 0

    def cancel(self) -> None:
        """Give the reservation back, if there is one."""
        _cancel_all(self._reserved)
        self._reserved = ()

    def wake(self, tags: Collection[str], finish: Callable[[], None], watch: Stopwatch) -> None:
        """Restore the parts with these tags, call `finish`, and settle.

        Raises InsufficientMemory with the missing bytes, or whatever restoring or `finish` raises: these parts sleep as
        before then, and hold nothing.
        """
        with watch.phase("reserve"):
            missing_bytes = self.prepare(tags)
        if missing_bytes:
            raise InsufficientMemory(
                f"{missing_bytes} bytes are missing on the device to wake {' and '.join(sorted(tags))}; "
                "another process holds them: free them and wake again"
            )
        parts, self._reserved = self._reserved, ()
        try:
            for part in parts:
                with watch.phase(part.tag):
                    part.restore()
            finish()
            for part in parts:
                with watch.phase(part.tag):
                    part.arrive()
        except BaseException:
            _cancel_all([part for part in parts if part.is_asleep])
            for part in parts:
                if not part.is_asleep:
                    part.drop()
            raise
        for part in self._parts:
            part.settle()


def _save_all(parts: Sequence[SleepPart], level: int) -> None:
    saved: list[SleepPart] = []
    try:
        for part in parts:
            part.save(level)
            saved.append(part)
    except BaseException:
        for part in saved:
            part.forget()
        raise


def _reserve_all(parts: Sequence[SleepPart], promised: Promise) -> int:
    """Reserve every part or none; return the bytes that all of them together miss.

    Where they do not fit nothing is taken, not even for a moment; a device that is another's too may yet refuse a part.
    """
    reserved: list[SleepPart] = []
    try:
        with promised(_wake_bytes(parts)):
            for part in parts:
                part.reserve()
                reserved.append(part)
    except DeviceOutOfMemory as error:
        free_bytes = error.free_bytes + _wake_bytes(reserved)
        _cancel_all(reserved)
        return DeviceOutOfMemory(_wake_bytes(parts), free_bytes).missing_bytes
    except BaseException:
        _cancel_all(reserved)
        raise
    return 0


def _cancel_all(parts: Sequence[SleepPart]) -> None:
    for part in parts:
        part.cancel()


def _wake_bytes(parts: Sequence[SleepPart]) -> int:
    return sum(part.wake_bytes for part in parts)


def _tags(parts: Iterable[SleepPart]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.tag for part in parts))
