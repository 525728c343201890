"""A driver that says what the test tells it to."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from dormouse_worker.model.memory.gpu_health import GpuLost


class FakeNvml:
    """Implements `gpu_health.Nvml`."""

    uuid = "GPU-fake"

    def __init__(self) -> None:
        self.xids: deque[int] = deque()  # what `next_xid` gives, one by one
        self.ecc_errors: int | None = 0
        self.memory: dict[int, int] = {}  # bytes by pid; {} = as inside a container
        self.lost = ""  # not empty: the device is gone, and why

    def next_xid(self) -> int | None:
        """See `Nvml`."""
        if self.xids:  # the event of a loss still arrives when nothing else answers any more
            return self.xids.popleft()
        self._require_device()
        return None

    def uncorrectable_ecc_errors(self) -> int | None:
        """See `Nvml`."""
        self._require_device()
        return self.ecc_errors

    def memory_by_pid(self) -> Mapping[int, int]:
        """See `Nvml`."""
        self._require_device()
        return self.memory

    def _require_device(self) -> None:
        if self.lost:
            raise GpuLost(self.lost)
