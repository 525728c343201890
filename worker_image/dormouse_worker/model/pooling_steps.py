"""A pass for vectors in steps: it stops between any two of them, and goes on later with the bits of the whole."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator

import numpy as np

from dormouse_worker.engine.pooling.batch import PoolingOutput

Steps = Generator[None, None, PoolingOutput]


class PassInSteps:
    """Implements `PassUnderWay`. Computes in the thread of who waits, and keeps its memory until it is done or left."""

    def __init__(self, steps: Steps, clock: Callable[[], float] = time.perf_counter) -> None:
        self._steps = steps
        self._clock = clock
        self._output: PoolingOutput | None = None

    def __repr__(self) -> str:
        return f"PassInSteps({'done' if self._output else 'under way'})"

    def advance(self, seconds: float) -> bool:
        """See `PassUnderWay`: at least one step."""
        deadline_s = self._clock() + seconds
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is told
            while self._output is None:
                try:
                    next(self._steps)
                except StopIteration as end:
                    self._output = end.value
                if self._clock() >= deadline_s:
                    break
        return self._output is not None

    def finish(self) -> PoolingOutput:
        """See `PassUnderWay`."""
        self.advance(math.inf)
        assert self._output is not None, "nothing stops it"
        return self._output

    def leave(self) -> None:
        """See `PassUnderWay`. Safe to call at any time, and twice."""
        self._steps.close()
