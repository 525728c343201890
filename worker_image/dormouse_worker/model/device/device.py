"""What a rank's worker needs of its device. One implementation per kind; who holds one asks nothing about the kind."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from dormouse_worker.model.device.driver import MemoryDriver

if TYPE_CHECKING:
    import torch


class Device(Protocol):
    """One device and the memory beside it."""

    @property
    def name(self) -> str:
        """Return what reports call it: `cpu`, or the GPU's UUID."""

    @property
    def torch_device(self) -> torch.device:
        """Return where tensors live."""

    @property
    def capability(self) -> tuple[int, int] | None:
        """Return the compute capability, major and minor; None for a device without one."""

    @property
    def memory(self) -> MemoryDriver:
        """Return the memory that arenas take."""

    @property
    def copies(self) -> MemoryDriver | None:
        """Return the host memory from which copies are fastest (on CUDA pinned); None = there is one memory only.

        With one memory the arena is the only copy: there is nothing to keep beside it.
        """

    @property
    def has_copy_engine(self) -> bool:
        """Return whether copies run beside what is computed, and take nothing from it."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy bytes between an arena and a host copy, either way, in slices; returns when they are there.

        Both are uint8 [n]. Several threads may copy at once.
        """

    def counting_on(self, num_bytes: int) -> AbstractContextManager[None]:
        """Within the block, arenas may be promised so much more host memory: it goes back while they are filled."""

    def synchronize(self) -> None:
        """Wait until the device has finished everything that was asked of it. Raises what the work raised."""
