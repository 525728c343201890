"""Whether and when a dead engine is started again. Decides only; `supervisor` acts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FIRST_DELAY_S = 1.0  # after the second death within the window; doubles with each further one. The first waits for none
MAX_DELAY_S = 60.0
_MAX_DOUBLINGS = 6  # beyond them the delay is MAX_DELAY_S anyway


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """How often a new process may help; beyond it the cause lies outside and the whole worker ends."""

    max_restarts: int  # within the window; 0 = never
    window_s: float  # older restarts are forgotten

    def __str__(self) -> str:
        """Return the limit in words, with the knobs."""
        return (
            f"{self.max_restarts} restarts within {self.window_s:g} s are allowed "
            "(--max-engine-restarts, --engine-restart-window)"
        )


class RestartBudget:
    """Owns the times of the restarts that still count."""

    def __init__(self, limits: RestartLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._times_s: list[float] = []

    def __repr__(self) -> str:
        return f"RestartBudget({len(self._times_s)} of {self._limits.max_restarts} used)"

    def take(self) -> float | None:
        """Count one restart and return the seconds to wait before it; None, and nothing counted, at the limit."""
        now_s = self._clock()
        self._times_s = [time_s for time_s in self._times_s if now_s - time_s < self._limits.window_s]
        if len(self._times_s) >= self._limits.max_restarts:
            return None
        earlier = len(self._times_s)
        self._times_s.append(now_s)
        return float(min(FIRST_DELAY_S * 2 ** min(earlier - 1, _MAX_DOUBLINGS), MAX_DELAY_S)) if earlier else 0.0
