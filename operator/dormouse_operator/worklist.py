"""Which objects have to be looked at, and when; and the loop that does it. One pass per object at a time.

`Dirty` is the pure part: a set of keys with the times from which each is due, and those that are being worked on.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from dormouse_kube.reflector import Backoff
from dormouse_operator.errors import NotLeading
from dormouse_operator.model import AnyKey

_LOG = logging.getLogger(__name__)


CHANGED, SWEPT = 0, 1  # why a key is marked: what changed goes before what is only looked through


@dataclass(slots=True)
class Dirty:
    """Keys and when they are due, in seconds of any clock. A key that is worked on is not given out a second time.

    Two heaps: those whose time has not come, by time; those that are due, by rank and then by time. An entry of a heap
    counts only while it is what `_due` says, so that a mark which is overtaken by an earlier one needs no search.
    """

    _due: dict[AnyKey, tuple[float, int]] = field(default_factory=dict)  # when, and its rank
    _busy: set[AnyKey] = field(default_factory=set)
    _later: list[tuple[float, int, AnyKey]] = field(default_factory=list)
    _ready: list[tuple[int, float, AnyKey]] = field(default_factory=list)

    def __repr__(self) -> str:
        """Show the counts."""
        return f"Dirty({len(self._due)} due, {len(self._busy)} busy)"

    def mark(self, key: AnyKey, due: float, rank: int = CHANGED) -> None:
        """Make the key due at this time, or earlier or by a better rank if it is so already."""
        old_due, old_rank = self._due.get(key, (due, rank))
        entry = min(due, old_due), min(rank, old_rank)
        if self._due.get(key) != entry:
            self._due[key] = entry
            heapq.heappush(self._later, (*entry, key))

    def take(self, now: float, limit: int) -> list[AnyKey]:
        """Give out keys that are due, the longest waiting first, so that at most `limit` are being worked on."""
        self._ripen(now)
        taken: list[AnyKey] = []
        while self._ready and len(self._busy) < limit:
            rank, due, key = heapq.heappop(self._ready)
            if self._due.get(key) == (due, rank) and key not in self._busy:
                del self._due[key]
                self._busy.add(key)
                taken.append(key)
        return taken

    def give_back(self, key: AnyKey) -> None:
        """Say that the work on a key that was given out has ended."""
        self._busy.remove(key)
        if key in self._due:  # its entry may have been passed over in the meantime
            heapq.heappush(self._later, (*self._due[key], key))

    def next_due(self, limit: int) -> float | None:
        """Return when the next key can be given out, None if only a change brings one about."""
        if len(self._busy) >= limit:
            return None
        ready = min((due for rank, due, key in self._ready if self._counts(key, due, rank)), default=None)
        while self._later and not self._counts(self._later[0][2], *self._later[0][:2]):
            heapq.heappop(self._later)
        later = self._later[0][0] if self._later else None
        return min((due for due in (ready, later) if due is not None), default=None)

    def waiting(self, now: float) -> list[float]:
        """Return for how long each key has been due that nobody works on."""
        return [now - due for key, (due, _) in self._due.items() if due <= now and key not in self._busy]

    def check_integrity(self) -> None:
        """Assert that every mark that nobody works on can be found again."""
        found = {key for _, _, key in (*self._later, *self._ready)}
        assert self._due.keys() - self._busy <= found, f"lost: {self._due.keys() - self._busy - found}"

    def _ripen(self, now: float) -> None:
        """Move what has become due from one heap to the other."""
        while self._later and self._later[0][0] <= now:
            due, rank, key = heapq.heappop(self._later)
            if self._counts(key, due, rank):
                heapq.heappush(self._ready, (rank, due, key))

    def _counts(self, key: AnyKey, due: float, rank: int) -> bool:
        """Return whether an entry of a heap still says when the key is due, and the key can be given out."""
        return key not in self._busy and self._due.get(key) == (due, rank)


Reconcile = Callable[[AnyKey], Awaitable[float | None]]  # returns after how many seconds to come again
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
        self._failures: dict[AnyKey, int] = {}
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        """Show the counts."""
        return f"Worklist({self._dirty!r}, {len(self._failures)} failing)"

    def mark(self, key: AnyKey, after_s: float = 0.0) -> None:
        """Have the key looked at, now or after so many seconds."""
        self._dirty.mark(key, self._clock() + after_s)
        self._changed.set()

    def sweep(self, keys: Iterable[AnyKey]) -> None:
        """Have many keys looked through, after whatever changes meanwhile."""
        for key in keys:
            self._dirty.mark(key, self._clock(), SWEPT)
        self._changed.set()

    @property
    def waiting_s(self) -> list[float]:
        """Return for how long each key has been due that nobody works on yet."""
        return self._dirty.waiting(self._clock())

    async def run(self) -> None:
        """Work until cancelled. Raises NotLeading when a pass finds that this operator may not act any more."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for key in self._dirty.take(self._clock(), self._max_concurrent):
                    tasks.create_task(self.work(key), name=f"reconcile {key}")
                self._changed.clear()
                due = self._dirty.next_due(self._max_concurrent)
                timeout_s = None if due is None else max(0.0, due - self._clock())
                with suppress(TimeoutError):  # wait_for loses a cancel that comes with a change
                    async with asyncio.timeout(timeout_s):
                        await self._changed.wait()

    async def work(self, key: AnyKey) -> None:
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

    def _note_failure(self, key: AnyKey, error: Exception) -> float:
        """Log what went wrong and return the pause before the next try."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        asked_s = getattr(error, "retry_after_s", None)  # by an API server that is too busy
        pause_s = max(asked_s or 0.0, self._backoff.delay_s(failures, self._rng))
        is_expected = type(error).__module__.startswith(("dormouse_kube", "dormouse_operator"))
        _LOG.warning("%s: again in %.1f s: %s", key, pause_s, error, exc_info=None if is_expected else error)
        if self._on_error:
            self._on_error(type(error).__name__)
        return pause_s
