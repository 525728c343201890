"""What one worker takes of its device, measured: one way for memory that is the process's, one for a device's own."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch

from dormouse_worker.common.host import Host, measure_peak, release_free_memory
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.cuda import CudaDevice
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.device.stand_in import StandInDevice
from dormouse_worker.model.memory.accounting import LIBRARIES_BYTES, MAX_LIBRARIES_BYTES, DeviceAccount, DeviceMemory
from dormouse_worker.model.memory.arithmetic import (
    RESIDENT_MEMORY,
    Limit,
    Measured,
    choose_limit,
    split_device_measurement,
    split_measurement,
)

Run = Callable[[], None]


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


class TorchPool(Protocol):
    """What torch's own allocator holds on the device."""

    def rest_bytes(self) -> int:
        """Return what it holds when nothing runs."""

    def peak_bytes(self, run: Run) -> int:
        """Return by how much more it held while this ran."""


class CudaPool:
    """Implements `TorchPool` for a GPU: what is reserved counts, for nobody else can have it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __repr__(self) -> str:
        return f"CudaPool({self._device})"

    def rest_bytes(self) -> int:
        """See `TorchPool`."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device)

    def peak_bytes(self, run: Run) -> int:
        """See `TorchPool`."""
        rest_bytes = self.rest_bytes()
        torch.cuda.reset_peak_memory_stats(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return max(0, torch.cuda.max_memory_reserved(self._device) - rest_bytes)


class HostPool:
    """Implements `TorchPool` for a device that is not there: torch takes this process's memory instead."""

    def __init__(self, host: Host, empty: Run = lambda: None) -> None:
        """`empty` gives back what stands for it in a stand-in's books."""
        self._host, self._empty = host, empty

    def __repr__(self) -> str:
        return "HostPool()"

    def rest_bytes(self) -> int:
        """See `TorchPool`. What the process holds at rest is no device's memory."""
        self._empty()
        return 0

    def peak_bytes(self, run: Run) -> int:
        """See `TorchPool`."""
        release_free_memory()
        rest_bytes = self._host.resident_bytes()
        with measure_peak(self._host) as peak:
            run()
        return max(0, peak.resident_bytes - rest_bytes)


class DeviceMeter:
    """Implements `Meter` for a device with memory of its own: its account counts, and neighbours do not."""

    def __init__(self, account: DeviceAccount, pool: TorchPool) -> None:
        self._account, self._pool = account, pool

    def __repr__(self) -> str:
        return f"DeviceMeter({self._account!r}, {self._pool!r})"

    @property
    def measured_by(self) -> str:
        """See `Meter`."""
        return self._account.snapshot().measured_by

    def open(self) -> None:
        """See `Meter`: every part is measured when it is made, the context when the device was opened."""

    def limit(self) -> Limit:
        """See `Meter`."""
        return Limit(self._account.snapshot().total_bytes, is_known=True, name="device memory")

    def measure(self, weights_bytes: int, *, warm_up: Run, peak: Run, graph_bytes: int = 0) -> Measured:
        """See `Meter`."""
        started_s = time.monotonic()
        self._account.measure("libraries", warm_up, guess_bytes=LIBRARIES_BYTES, max_bytes=MAX_LIBRARIES_BYTES)
        torch_bytes = self._pool.rest_bytes() + self._pool.peak_bytes(peak)
        snapshot = self._account.snapshot()
        return split_device_measurement(
            weights_bytes=weights_bytes,
            arena_bytes=snapshot.arena_bytes,
            torch_bytes=torch_bytes,
            other_bytes=snapshot.other_bytes,
            graph_bytes=graph_bytes,
            seconds=time.monotonic() - started_s,
            measured_by=snapshot.measured_by,
        )

    def measure_part(self, name: str, make: Run, unmake: Run | None = None) -> int:
        """See `Meter`. Torch's share of it counts too."""
        self._account.forget(name)
        before_bytes = self.own_bytes()
        self._account.measure(name, make, unmake)
        return max(0, self.own_bytes() - before_bytes)

    def own_bytes(self) -> int:
        """See `Meter`."""
        return self._account.snapshot().own_bytes

    def release_unused(self) -> None:
        """See `Meter`. The host's, too: activations' pages, on the device that is not there."""
        release_free_memory()
        self._pool.rest_bytes()

    def rest_bytes(self) -> int:
        """See `Meter`."""
        self.release_unused()
        return self.own_bytes()

    def free_bytes(self) -> int:
        """See `Meter`."""
        return self._account.snapshot().free_bytes


def make_meter(
    device: Device, host: Host, settings: EngineSettings, nvml_own_bytes: Callable[[], int | None] = lambda: None
) -> Meter:
    """Return the way to measure on this device. `nvml_own_bytes` tells what NVML counts as ours, None if hidden."""
    if device.copies is None:
        return ResidentMeter(host, settings)
    if isinstance(device, StandInDevice):
        memory = device.memory
        account = DeviceAccount(memory, lambda: memory.activation_bytes, nvml_own_bytes)
        account.add("context", device.context)
        return DeviceMeter(account, HostPool(host, memory.give_activations))
    assert isinstance(device.memory, DeviceMemory), "a device with memory of its own knows how much it has"
    if not isinstance(device, CudaDevice):
        return DeviceMeter(DeviceAccount(device.memory, lambda: 0, nvml_own_bytes), HostPool(host))
    reserved = functools.partial(torch.cuda.memory_reserved, device.torch_device)
    account = DeviceAccount(device.memory, reserved, nvml_own_bytes)
    account.add("context", device.context)
    return DeviceMeter(account, CudaPool(device.torch_device))
