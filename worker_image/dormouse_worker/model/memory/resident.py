"""What one worker takes, measured: how it is asked of any device, and where memory is the process's. No torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from dormouse_worker.common.host import Host, measure_peak, release_free_memory
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.memory.arithmetic import RESIDENT_MEMORY, Limit, Measured, choose_limit, split_measurement

Run = Callable[[], object]


class Meter(Protocol):
    """How a kind of device tells what this process holds."""

    @property
    def measured_by(self) -> str:
        """Return the way, for the report."""

    def open(self) -> None:
        """Note what is held before anything is loaded."""

    def limit(self) -> Limit:
        """Return the memory to share."""

    def measure(self, weights_bytes: int, *, warm_up: Run, peak: Run, graph_bytes: int = 0) -> Measured:
        """Measure the largest batch, `peak`. `warm_up` is run before: libraries take what they keep for ever.

        Weights are loaded; nothing else runs on this device in this process.
        """

    def measure_part(self, name: str, make: Run, unmake: Run | None = None) -> int:
        """Make something that libraries keep, graphs or communicators; return by how much own bytes grew for it.

        What bore this name before is gone by now. With `unmake` it may be made several times, see
        `accounting.measure_around`.
        """

    def own_bytes(self) -> int:
        """Return what this process holds of the device's memory now."""

    def release_unused(self) -> None:
        """Let libraries give back what they hold without using it."""

    def rest_bytes(self) -> int:
        """Return what counts against the limit now, after `release_unused`; cheap, nothing is run."""

    def free_bytes(self) -> int:
        """Return what it could still take now, whoever else uses the device."""


class ResidentMeter:
    """Implements `Meter` where device and host memory are one: what is resident counts, whoever allocated it."""

    measured_by = RESIDENT_MEMORY

    def __init__(self, host: Host, settings: EngineSettings) -> None:
        self._host, self._settings = host, settings
        self._baseline_bytes = 0

    def __repr__(self) -> str:
        return f"ResidentMeter(baseline={self._baseline_bytes})"

    def open(self) -> None:
        """See `Meter`."""
        release_free_memory()
        self._baseline_bytes = self._host.resident_bytes()

    def limit(self) -> Limit:
        """See `Meter`. The ranks of a stage share a pod, and each has its part of that one's memory."""
        limit = choose_limit(self._settings, self._host.memory_limit_bytes(), self._host.memory_total_bytes())
        return replace(limit, total_bytes=limit.total_bytes // self._settings.tensor_parallel_size)

    def measure(self, weights_bytes: int, *, warm_up: Run, peak: Run, graph_bytes: int = 0) -> Measured:
        """See `Meter`."""
        del graph_bytes  # there are none
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
            parent_bytes=self._parent_bytes(),
            seconds=time.monotonic() - started_s,
        )

    def measure_part(self, name: str, make: Run, unmake: Run | None = None) -> int:
        """See `Meter`. Whatever is resident is ours already, under no name."""
        del name, unmake
        before_bytes = self.own_bytes()
        make()
        return max(0, self.own_bytes() - before_bytes)

    def own_bytes(self) -> int:
        """See `Meter`."""
        return self._host.resident_bytes()

    def release_unused(self) -> None:
        """See `Meter`."""
        release_free_memory()

    def rest_bytes(self) -> int:
        """See `Meter`. With the parent, the front: it shares the limit."""
        self.release_unused()
        return self._host.resident_bytes() + self._parent_bytes()

    def free_bytes(self) -> int:
        """See `Meter`."""
        return self._host.available_bytes()

    def _parent_bytes(self) -> int:
        return self._host.resident_bytes(os.getppid())
