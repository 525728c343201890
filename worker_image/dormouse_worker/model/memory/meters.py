"""What one worker takes of a device with memory of its own; and who measures which device."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Protocol

import torch

from dormouse_worker.common.host import Host, measure_peak, release_free_memory
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.accounting import LIBRARIES_BYTES, MAX_LIBRARIES_BYTES, DeviceAccount, DeviceMemory
from dormouse_worker.model.device.cuda import CudaDevice
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.device.stand_in import StandInDevice
from dormouse_worker.model.memory.arithmetic import Limit, Measured, split_device_measurement
from dormouse_worker.model.memory.resident import Meter, ResidentMeter, Run


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
