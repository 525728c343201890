"""What a rank's process takes of its device's memory. One implementation per way of measuring."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

from dormouse_worker.host import Host, measure_peak, release_free_memory
from dormouse_worker.model.memory import Limit, Measured, choose_limit, split_measurement
from dormouse_worker.settings import EngineSettings


class MemoryAccount(Protocol):
    """Measures one process on one device; all sizes in bytes."""

    def open(self) -> None:
        """Take the baseline: after the imports, before anything is loaded."""

    def own_bytes(self) -> int:
        """Return what this process holds of the device's memory now."""

    def release_unused(self) -> None:
        """Let libraries give back what they hold without using it."""

    def measure(self, weights_bytes: int, warm_up: Callable[[], None], peak: Callable[[], None]) -> Measured:
        """Return what the process takes at the most, while `peak` runs; `warm_up` runs before.

        Whatever libraries take for ever is to be taken by `warm_up`.
        """

    def limit(self) -> Limit:
        """Return the memory to share."""


class HostAccount:
    """Implements `MemoryAccount` for the CPU by the resident memory of this process and of the front, its parent."""

    def __init__(self, host: Host, settings: EngineSettings) -> None:
        self._host = host
        self._settings = settings
        self._baseline_bytes = 0

    def __repr__(self) -> str:
        return f"HostAccount(baseline={self._baseline_bytes} bytes)"

    def open(self) -> None:
        """See `MemoryAccount`."""
        release_free_memory()
        self._baseline_bytes = self._host.resident_bytes()

    def own_bytes(self) -> int:
        """See `MemoryAccount`."""
        return self._host.resident_bytes()

    def release_unused(self) -> None:
        """See `MemoryAccount`."""
        release_free_memory()

    def measure(self, weights_bytes: int, warm_up: Callable[[], None], peak: Callable[[], None]) -> Measured:
        """See `MemoryAccount`."""
        started_s = time.monotonic()
        warm_up()
        release_free_memory()
        loaded_bytes = self._host.resident_bytes()
        with measure_peak(self._host) as highest:
            peak()
        release_free_memory()
        return split_measurement(
            weights_bytes=weights_bytes,
            baseline_bytes=self._baseline_bytes,
            loaded_bytes=loaded_bytes,
            peak_bytes=highest.resident_bytes,
            parent_bytes=self._host.resident_bytes(os.getppid()),
            seconds=time.monotonic() - started_s,
        )

    def limit(self) -> Limit:
        """See `MemoryAccount`."""
        return choose_limit(self._settings, self._host.memory_limit_bytes(), self._host.memory_total_bytes())
