"""Sleep and wake as two-phase operations over the parts of a worker's memory. Knows no device and no RPC.

What can fail is done while everything can still be taken back:

    sleep   save every part (copies out, host memory)         -> then drop every part, which can not fail
    wake    reserve every part (all physical memory or none)  -> restore every part -> verify

A failure at any point leaves every part as it was before the call, and nothing is held twice.
"""

from __future__ import annotations

from typing import Protocol


class SleepPart(Protocol):
    """One tag's memory: `weights`, `kv_cache` or `workspace`.

    Awake or asleep: awake -save-> awake, saved -drop-> asleep -reserve-> asleep, reserved -restore-> awake.
    """

    @property
    def tag(self) -> str:
        """Return the name by which callers choose it."""

    @property
    def is_asleep(self) -> bool:
        """Return whether it holds no device memory."""

    def save(self, level: int) -> None:
        """Do everything about sleeping at this level that may fail; the part stays usable.

        Raises InsufficientMemory with the numbers if host memory for a copy is missing.
        """

    def forget(self) -> None:
        """Take `save` back."""

    def drop(self) -> int:
        """Give the device memory back; return how many bytes. Must not fail."""

    def reserve(self) -> None:
        """Take all the physical memory that `restore` needs. Raises DeviceOutOfMemory with nothing held."""

    def cancel(self) -> None:
        """Take `reserve` back; nothing happens where nothing is reserved."""

    def restore(self) -> None:
        """Bring the contents back. Any error leaves the part asleep, with nothing reserved, and able to try again."""
