"""Engines of this worker that ended when nobody had asked them to: the last one, and how many."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from dormouse_worker.common.exit_codes import EXIT_GPU_UNHEALTHY, GROUP_EXITS, end_words
from dormouse_worker.front.engine.status_board import Failure

logger = logging.getLogger(__name__)
# of an engine's end, by its exit code
REASONS = {EXIT_GPU_UNHEALTHY: "GPUUnhealthy", **{code: reason for reason, code in GROUP_EXITS.items()}}


class EngineLosses:
    """Owns what is told of them."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self.words = ""  # how the last one ended, or why none could be started
        self.failure: Failure | None = None  # why the last one ended
        self.is_gpu_unhealthy = False  # it ended because of its device, and is not started again
        self.failed_at: datetime | None = None
        self.num_losses = 0

    def __repr__(self) -> str:
        return f"EngineLosses({self.num_losses}, {self.words!r})"

    def note(self, words: str) -> None:
        """Remember and log how the engine ended."""
        self.words = words
        logger.error("engine died", extra={"fields": {"reason": words}})

    def count(self, exit_code: int, last_words: str, why_killed: str) -> None:
        """Count one more; `why_killed` = why we killed it, "" where we did not."""
        self.is_gpu_unhealthy = self.is_gpu_unhealthy or exit_code == EXIT_GPU_UNHEALTHY
        end = f"was killed: {why_killed}" if why_killed else end_words(exit_code)
        self.note(f"the engine process {end}; its last words: {last_words or 'none'}")
        self.failure = Failure(REASONS.get(exit_code, "EngineDied"), self.words)
        self.failed_at = self._now()
        self.num_losses += 1
