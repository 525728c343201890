"""An event loop whose clock jumps to the next thing that is due, as soon as nobody has anything to do.

For programs without input: no socket is ever ready here. What they compute takes no time; what they wait for takes
exactly as long as they say.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Selector(selectors.SelectSelector):
    """Lets time pass instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return at once, `timeout` later. Raises RuntimeError where nothing would ever happen."""
        if timeout is None:
            raise RuntimeError("everybody waits, and nothing is due")
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in virtual time, which begins at 0."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual.now_s

    def at(self, start: datetime) -> datetime:
        """Return the time of day, if the loop began at `start`."""
        return start + timedelta(seconds=self.time())


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
