"""What the machine and the container grant this process: memory and cpu limits, resident memory. No torch.

Reads /proc and /sys/fs/cgroup (version 1 and 2); both roots can be replaced in tests.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

UNLIMITED_BYTES = 1 << 60  # cgroup version 1 writes a huge number for 'no limit'
INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # fixed in the kernel's sources
_NAMESPACE_PIDS = re.compile(r"^NSpid:((?:[ \t]+\d+)+)$", re.MULTILINE)
_KIB_FIELD = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)


class Host:
    """Reader of one machine's /proc and /sys/fs/cgroup."""

    def __init__(self, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroup = cgroup

    def memory_limit_bytes(self) -> int | None:
        """Return the smallest memory limit of this process's cgroups, or None if there is none."""
        limits = [
            *self._values("", "memory.max"),
            *self._values("memory", "memory.limit_in_bytes"),
        ]
        numbers = [int(text) for text in limits if text.isdigit() and int(text) < UNLIMITED_BYTES]
        return min(numbers, default=None)

    def cpu_limit(self) -> float | None:
        """Return the smallest cpu limit in cores, or None if there is none."""
        pairs = [text.split() for text in self._values("", "cpu.max")]
        quotas, periods = self._values("cpu", "cpu.cfs_quota_us"), self._values("cpu", "cpu.cfs_period_us")
        pairs += [list(pair) for pair in zip(quotas, periods, strict=False)]
        cores = [int(quota) / int(period) for quota, period in pairs if quota.isdigit()]
        return min(cores, default=None)

    def num_threads(self, wanted: int) -> int:
        """Return how many compute threads to use: `wanted`, or for 0 the cpu limit, or all cores we may run on."""
        cores = len(os.sched_getaffinity(0))
        limit = self.cpu_limit()
        return wanted or max(1, cores if limit is None else min(cores, int(limit)))

    def memory_total_bytes(self) -> int:
        """Return the machine's memory."""
        return self._kib_fields(self._proc / "meminfo")["MemTotal"] << 10

    def available_bytes(self) -> int:
        """Return how much memory this process may still take.

        Within a limit: what the limit leaves above this process and its parent, the front; never more than the machine
        has. Pages of files, which the kernel drops on demand, count as free.
        """
        machine = self._kib_fields(self._proc / "meminfo")["MemAvailable"] << 10
        limit = self.memory_limit_bytes()
        if limit is None:
            return machine
        used = self.resident_bytes() + self.resident_bytes(os.getppid())
        return min(machine, max(0, limit - used))

    def driver_pid(self) -> int | None:
        """Return the id by which the kernel's drivers know this process; None if it cannot be told from here.

        Drivers count in the initial process namespace. /proc lists our ids from its own namespace inwards, so the first
        is theirs if /proc belongs to a namespace outside ours (taken to be the initial one), or if ours is the initial.
        """
        try:
            status = (self._proc / "self" / "status").read_text()
            is_initial = (self._proc / "self" / "ns" / "pid").readlink().name == INITIAL_PID_NAMESPACE
        except OSError:
            return None
        match = _NAMESPACE_PIDS.search(status)
        pids = [int(pid) for pid in match[1].split()] if match else []
        return pids[0] if len(pids) > 1 or (pids and is_initial) else None

    def resident_bytes(self, pid: int | None = None) -> int:
        """Return a process's resident memory (default: ours); 0 if it cannot be read."""
        return self._status(pid).get("VmRSS", 0) << 10

    def peak_resident_bytes(self) -> int:
        """Return the highest resident memory of this process since the start or the last `reset_peak`."""
        return self._status(None).get("VmHWM", 0) << 10

    def reset_peak(self) -> bool:
        """Let the peak start anew at the present; False where the kernel does not permit it."""
        try:
            (self._proc / "self" / "clear_refs").write_text("5")
        except OSError:
            return False
        return True

    def _status(self, pid: int | None) -> dict[str, int]:
        try:
            return self._kib_fields(self._proc / ("self" if pid is None else str(pid)) / "status")
        except OSError:
            return {}

    def _kib_fields(self, file: Path) -> dict[str, int]:
        return {name: int(value) for name, value in _KIB_FIELD.findall(file.read_text())}

    def _values(self, controller: str, name: str) -> list[str]:
        """Return the file's text at each level from our group to the root; "" = the version 2 hierarchy."""
        group = self._group(controller)
        if group is None:
            return []
        mount = self._cgroup / controller
        levels = [mount / group, *(mount / parent for parent in Path(group).parents)]
        return [(level / name).read_text().strip() for level in dict.fromkeys(levels) if (level / name).is_file()]

    def _group(self, controller: str) -> str | None:
        """Return this process's group relative to the controller's mount, or None if it has none."""
        try:
            lines = (self._proc / "self" / "cgroup").read_text().splitlines()
        except OSError:
            return None
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                return path.lstrip("/")
        return None


class PeakMeter(Protocol):
    """Where `measure_peak` reads from."""

    def resident_bytes(self) -> int:
        """Return resident memory now."""

    def peak_resident_bytes(self) -> int:
        """Return the high-water mark."""

    def reset_peak(self) -> bool:
        """Reset the high-water mark if permitted."""


class Peak:
    """The result of `measure_peak`, filled when its block ends."""

    def __init__(self) -> None:
        self.resident_bytes = 0


@contextlib.contextmanager
def measure_peak(meter: PeakMeter, sample_interval_s: float = 0.002) -> Iterator[Peak]:
    """Measure the highest resident memory inside the block.

    Exact by the kernel's high-water mark; where resetting it is not permitted a thread samples every few
    milliseconds, which can miss a shorter peak.
    """
    peak = Peak()
    if meter.reset_peak():
        yield peak
        peak.resident_bytes = meter.peak_resident_bytes()
        return
    done = threading.Event()

    def sample() -> None:
        while True:
            peak.resident_bytes = max(peak.resident_bytes, meter.resident_bytes())
            if done.wait(sample_interval_s):
                return

    thread = threading.Thread(target=sample, name="peak-sampler", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def release_free_memory() -> None:
    """Collect garbage and give the allocator's free pages back to the kernel (glibc only; elsewhere only the first)."""
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Give the allocator's free pages back to the kernel (glibc only)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def freeze_garbage_collector() -> None:
    """Exempt everything that lives now from garbage collection, until `thaw_garbage_collector`.

    The libraries' objects live as long as the process. A full collection that looks at all of them takes a quarter of a
    second: too long in a sleep, and in the middle of decoding. At the interpreter's end they must be free to go, or
    extension modules complain of leaks.
    """
    gc.freeze()
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)


@contextlib.contextmanager
def lasting_objects() -> Iterator[None]:
    """Collect garbage once after the block, which imports libraries, and freeze what it made and is still needed."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        freeze_garbage_collector()
        if was_enabled:
            gc.enable()


def thaw_garbage_collector() -> None:
    """Let collections look at everything again."""
    gc.unfreeze()
