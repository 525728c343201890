"""Watches the GPU from a thread of its own, for the engine's thread may hang in a call that never returns."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dormouse_worker.model.memory.gpu_health import GpuFault, HealthCheck

LOOK_PERIOD_S = 2.0  # between two looks
STOP_WAIT_S = 1.0
CONFIRM_LOOKS = 10  # after forward passes failed: the driver may tell why a moment later
CONFIRM_PERIOD_S = 0.2


class GpuWatch:
    """Looks every few seconds and calls `on_fault` once, from its own thread, when the device is unfit."""

    def __init__(self, check: HealthCheck, on_fault: Callable[[GpuFault], None]) -> None:
        self._check = check
        self._on_fault = on_fault
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)

    def __repr__(self) -> str:
        return f"GpuWatch({self._check!r}, {'watching' if self._thread.is_alive() else 'off'})"

    def start(self) -> None:
        """Begin to watch; the first look is at once."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer. A look that hangs in the driver is left behind: the process is about to end."""
        self._stopped.set()
        self._thread.join(STOP_WAIT_S)

    def _run(self) -> None:
        while True:
            fault = self._check.look()
            if fault is not None:
                self._on_fault(fault)
                return
            if self._stopped.wait(LOOK_PERIOD_S):
                return


def explain_failure(check: HealthCheck, wait: Callable[[float], object]) -> GpuFault | None:
    """Return the fault behind forward passes that just failed, waiting a moment for the driver's word; else None."""
    for _ in range(CONFIRM_LOOKS):
        fault = check.look()
        if fault is not None:
            return fault
        wait(CONFIRM_PERIOD_S)
    return None
