"""How long the phases of an operation took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up the seconds of named phases; one phase may come several times."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.phases: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"Stopwatch({', '.join(f'{name} {seconds:.3f} s' for name, seconds in self.phases.items())})"

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block; also one that raises."""
        started_s = self._clock()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + self._clock() - started_s
