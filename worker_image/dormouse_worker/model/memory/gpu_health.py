"""The GPU as its driver sees it: whether it is still fit to compute, and how much of its memory is ours.

Judges only; who watches, and what ends when a fault is found, is `executor.gpu_watch`'s.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

logger = logging.getLogger(__name__)

# Xids after which results of this device cannot be trusted, or none will come: those that NVIDIA's catalogue answers
# with a reset of the GPU. Others are a program's own fault, or are followed by one of these.
FATAL_XIDS: Mapping[int, str] = MappingProxyType(
    {
        48: "an uncorrectable memory error (double bit)",
        62: "its internal controller has halted",
        64: "a bad row of its memory could not be remapped",
        74: "an error of NVLink",
        79: "the GPU has fallen off the bus",
        94: "an uncorrectable memory error, contained",
        95: "an uncorrectable memory error, not contained",
        119: "its system processor (GSP) does not answer",
        120: "its system processor (GSP) has failed",
        140: "an uncorrectable memory error (ECC) that was not recovered",
    }
)
MAX_XIDS_PER_LOOK = 100  # a device that reports without end must not hold the watcher


class GpuLost(Exception):
    """The driver does not know the device any more: it was reset, unloaded, or fell off the bus. Says which."""


class Nvml(Protocol):
    """One device. Every method may raise GpuLost, returns at once, and hides what this driver does not offer."""

    uuid: str

    def next_xid(self) -> int | None:
        """Return the next critical error since the last call, oldest first; None if there is none."""

    def uncorrectable_ecc_errors(self) -> int | None:
        """Return how many the driver counted since it was loaded; None where nobody counts."""

    def memory_by_pid(self) -> Mapping[int, int]:
        """Return the bytes that each process holds, by its id in the initial process namespace; {} if hidden."""


class DriverPid(Protocol):
    """Where `own_bytes` learns who we are."""

    def driver_pid(self) -> int | None:
        """Return this process's id in the initial process namespace, None if that cannot be told."""


@dataclass(frozen=True, slots=True)
class GpuFault:
    """Why a device is unfit. As text it is one line, which the front repeats."""

    uuid: str
    words: str
    xid: int | None = None

    def __str__(self) -> str:
        """Return the Xid, if there is one, the device and what it means."""
        what = f"Xid {self.xid}" if self.xid is not None else "fault"
        return f"{what} on {self.uuid}: {self.words}"


class HealthCheck:
    """Owns the count of memory errors that were there before us. Safe to use from two threads."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._known_errors: int | None = None  # None = not looked yet
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"HealthCheck({self._nvml.uuid})"

    def look(self) -> GpuFault | None:
        """Return what is wrong since the last look; None if the device is fit. The first look only learns."""
        with self._lock:
            try:
                return self._xid_fault() or self._ecc_fault()
            except GpuLost as error:
                return GpuFault(self._nvml.uuid, str(error))

    def _xid_fault(self) -> GpuFault | None:
        for _ in range(MAX_XIDS_PER_LOOK):
            xid = self._nvml.next_xid()
            if xid is None:
                return None
            if xid in FATAL_XIDS:
                return GpuFault(self._nvml.uuid, FATAL_XIDS[xid], xid)
            logger.warning("Xid %d on %s: not fatal to the device", xid, self._nvml.uuid)
        return None

    def _ecc_fault(self) -> GpuFault | None:
        """An uncorrectable error always comes with an Xid too, but the event can be missed: the count cannot."""
        count = self._nvml.uncorrectable_ecc_errors()
        if count is None:
            return None
        before, self._known_errors = self._known_errors, count
        if before is None or count <= before:
            return None
        return GpuFault(self._nvml.uuid, f"{count - before} uncorrectable memory errors more than before (ECC)")


def own_bytes(nvml: Nvml, host: DriverPid) -> int | None:
    """Return the device memory that the driver counts as this process's; None if it does not show us.

    Inside a container it usually shows nobody, or ids of the host's that mean somebody else here: without our id in the
    driver's namespace nothing is matched. Raises GpuLost.
    """
    pid = host.driver_pid()
    return None if pid is None else nvml.memory_by_pid().get(pid)
