"""Which objects have to be looked at, and when; and the loop that does it. One pass per object at a time.

`Dirty` is the pure part: a set of keys with the times from which each is due, and those that are being worked on.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from dormouse_kube.reflector import Backoff
from dormouse_operator.errors import NotLeading
from dormouse_operator.model import Key

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Dirty:
    """Keys and when they are due, in seconds of any clock. A key that is worked on is not given out a second time."""

    _due: dict[Key, float] = field(default_factory=dict)
    _busy: set[Key] = field(default_factory=set)

    def __repr__(self) -> str:
        """Show the counts."""
        return f"Dirty({len(self._due)} due, {len(self._busy)} busy)"

    def mark(self, key: Key, due: float) -> None:
        """Make the key due at this time, or earlier if it is so already."""
        self._due[key] = min(due, self._due.get(key, due))

    def take(self, now: float, limit: int) -> list[Key]:
        """Give out keys that are due, the longest waiting first, so that at most `limit` are being worked on."""
        ready = sorted((due, key) for key, due in self._due.items() if due <= now and key not in self._busy)
        taken = [key for _, key in ready[: max(0, limit - len(self._busy))]]
        for key in taken:
            del self._due[key]
        self._busy.update(taken)
        return taken

    def give_back(self, key: Key) -> None:
        """Say that the work on a key that was given out has ended."""
        self._busy.remove(key)

    def next_due(self, limit: int) -> float | None:
        """Return when the next key can be given out, None if only a change brings one about."""
        if len(self._busy) >= limit:
            return None
        return min((due for key, due in self._due.items() if key not in self._busy), default=None)


Reconcile = Callable[[Key], Awaitable[float | None]]  # returns after how many seconds to come again
OnError = Callable[[str], None]  # the kind of error


class Worklist:
    """Runs `reconcile` for every marked key: deduplicated, one pass per key at a time, with backoff after failures."""

    def __init__(
        self,
        reconcile: Reconcile,
        *,
        clock: Callable[[], float],
        max_concurrent: int = 32,
        backoff: Backoff | None = None,
        on_error: OnError | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Take what to run and a monotonic clock in seconds."""
        self._reconcile = reconcile
        self._clock = clock
        self._max_concurrent = max_concurrent
        self._backoff = backoff or Backoff(first_s=0.5, max_s=15.0)
        self._on_error = on_error
        self._rng = rng or random.Random()  # noqa: S311  # jitter needs no cryptography
        self._dirty = Dirty()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        """Show the counts."""
        return f"Worklist({self._dirty!r}, {len(self._failures)} failing)"

    def mark(self, key: Key, after_s: float = 0.0) -> None:
        """Have the key looked at, now or after so many seconds."""
        self._dirty.mark(key, self._clock() + after_s)
        self._changed.set()

    async def run(self) -> None:
        """Work until cancelled. Raises NotLeading when a pass finds that this operator may not act any more."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for key in self._dirty.take(self._clock(), self._max_concurrent):
                    tasks.create_task(self.work(key), name=f"reconcile {key}")
                self._changed.clear()
                due = self._dirty.next_due(self._max_concurrent)
                timeout_s = None if due is None else max(0.0, due - self._clock())
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), timeout_s)

    async def work(self, key: Key) -> None:
        """Make one pass over a key that was given out, and mark it for the next."""
        try:
            after_s = await self._reconcile(key)
        except NotLeading:
            raise
        except Exception as error:  # noqa: BLE001  # nothing that one object brings about may stop the others
            after_s = self._note_failure(key, error)
        else:
            self._failures.pop(key, None)
        self._dirty.give_back(key)
        if after_s is not None:
            self.mark(key, after_s)
        self._changed.set()

    def _note_failure(self, key: Key, error: Exception) -> float:
        """Log what went wrong and return the pause before the next try."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause_s = self._backoff.delay_s(failures, self._rng)
        is_expected = type(error).__module__.startswith(("dormouse_kube", "dormouse_operator"))
        _LOG.warning("%s: again in %.1f s: %s", key, pause_s, error, exc_info=None if is_expected else error)
        if self._on_error:
            self._on_error(type(error).__name__)
        return pause_s
