"""What goes on per deployment: requests, and the load of its awake workers. Counts; knows neither gRPC nor routing.

Kept for the operator, which asks when a model is idle and how loaded it is. Times are on this process's clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dormouse_kube.reflector import ObjectKey

_USAGE_DIGITS = 2  # a change below a hundredth of the cache is none


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What a worker told last. Loads of workers that are not ready count for nothing."""

    running: int
    waiting: int
    kv_cache_usage: float  # 0 to 1
    is_ready: bool


@dataclass(frozen=True, slots=True)
class CanaryFault:
    """Why a canary gets no more requests here."""

    try_name: str  # which try of it
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What is known of one deployment at one moment."""

    in_flight: int
    held: int
    last_request_s: float | None  # when a request last arrived or ended; None = none did since it is known
    is_wanted: bool  # requests wait for it to wake or to start
    wanted_s: float | None  # when one last did; None = none did
    known_since_s: float
    awake_workers: int
    running: int
    waiting: int
    mean_kv_cache_usage: float
    fault: CanaryFault | None = None


@dataclass(slots=True)
class _Entry:
    """One deployment's counts."""

    known_since_s: float
    in_flight: int = 0
    held: int = 0
    is_wanted: bool = False  # requests wait for it to wake or to start
    wanted_s: float | None = None  # when one last did, before now
    last_request_s: float | None = None
    loads: dict[ObjectKey, WorkerLoad] = field(default_factory=dict)  # by pod; of workers that are ready
    fault: CanaryFault | None = None

    @property
    def mean_usage(self) -> float:
        """Return the mean over the awake workers, 0 where there are none."""
        total = sum(load.kv_cache_usage for load in self.loads.values())
        return round(total / len(self.loads), _USAGE_DIGITS) if self.loads else 0.0


class Changes:
    """Which deployments changed since somebody looked last: one reader's, never longer than the list of deployments."""

    def __init__(self, keys: Iterator[ObjectKey]) -> None:
        """Begin with these as changed."""
        self._keys = set(keys)
        self._some = asyncio.Event()
        self._pressing = asyncio.Event()
        self._tell()

    def add(self, key: ObjectKey, *, is_pressing: bool = False) -> None:
        """Note a change. One that is pressing shall not wait for others."""
        self._keys.add(key)
        self._tell()
        if is_pressing:
            self._pressing.set()

    def take(self, most: int) -> tuple[list[ObjectKey], bool]:
        """Return at most so many of the changed ones and forget them; and whether these were all."""
        taken = sorted(self._keys)[:most]
        self._keys.difference_update(taken)
        self._tell()
        if not self._keys:
            self._pressing.clear()
        return taken, not self._keys

    async def wait(self) -> None:
        """Wait until there is a change."""
        await self._some.wait()

    async def wait_pressing(self) -> None:
        """Wait until there is one that is pressing."""
        await self._pressing.wait()

    def _tell(self) -> None:
        if self._keys:
            self._some.set()
        else:
            self._some.clear()


class ActivityLog:
    """The activity of every known deployment, and who wants to hear of changes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any."""
        self._clock = clock
        self._entries: dict[ObjectKey, _Entry] = {}
        self._readers: list[Changes] = []
        self._readers_of: dict[ObjectKey, list[Changes]] = {}  # who wants to hear of one deployment only

    def __repr__(self) -> str:
        """Show who is busy."""
        busy = {key.name: entry.in_flight for key, entry in sorted(self._entries.items()) if entry.in_flight}
        return f"ActivityLog({len(self._entries)} deployments, in flight: {busy}, {len(self._readers)} readers)"

    @property
    def now_s(self) -> float:
        """Return the time on the clock of all times here."""
        return self._clock()

    def add(self, key: ObjectKey) -> None:
        """Know a deployment from now on; changes nothing if it is known."""
        if key not in self._entries:
            self._entries[key] = _Entry(self._clock())
            self._changed(key)

    def forget(self, key: ObjectKey) -> None:
        """Forget a deployment; safe if it is not known, and while requests of it run."""
        if self._entries.pop(key, None):
            self._changed(key)

    @contextmanager
    def request(self, key: ObjectKey) -> Iterator[None]:
        """Count a request from its arrival to its end. One of a deployment that is not known counts nowhere."""
        entry = self._entries.get(key) or _Entry(self._clock())
        entry.in_flight += 1
        self._touch(key, entry)
        try:
            yield
        finally:
            entry.in_flight -= 1
            self._touch(key, entry)

    def note_held(self, key: ObjectKey, held: int, *, is_wanted: bool = False) -> None:
        """Take how many requests of the deployment wait for a worker now, and whether they want it to wake."""
        entry = self._entries.get(key)
        if entry is None or (entry.held, entry.is_wanted) == (held, is_wanted):
            return
        if entry.is_wanted or is_wanted:
            entry.wanted_s = self._clock()
        is_news = is_wanted and not entry.is_wanted
        entry.held, entry.is_wanted = held, is_wanted
        self._changed(key, is_pressing=is_news)

    def note_fault(self, key: ObjectKey, try_name: str, words: str) -> None:
        """Take why a canary gets no more requests of this gateway: the others shall hear of it at once."""
        if entry := self._entries.get(key):
            entry.fault = CanaryFault(try_name, words)
            self._changed(key, is_pressing=True)

    def note_load(self, key: ObjectKey, pod: ObjectKey, load: WorkerLoad | None) -> None:
        """Take what a worker of the deployment told, None when it is followed no more."""
        entry = self._entries.get(key)
        if entry is None:
            return
        before = _figures(entry)
        if load is not None and load.is_ready:
            entry.loads[pod] = load
        else:
            entry.loads.pop(pod, None)
        if _figures(entry) != before:
            self._changed(key)

    def activity(self, key: ObjectKey) -> Activity | None:
        """Return what is known of a deployment, None if it is not known itself."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        awake, running, waiting, mean = _figures(entry)
        return Activity(
            in_flight=entry.in_flight,
            held=entry.held,
            last_request_s=entry.last_request_s,
            is_wanted=entry.is_wanted,
            wanted_s=self._clock() if entry.is_wanted else entry.wanted_s,
            known_since_s=entry.known_since_s,
            awake_workers=awake,
            running=running,
            waiting=waiting,
            mean_kv_cache_usage=mean,
            fault=entry.fault,
        )

    @contextmanager
    def reader(self, key: ObjectKey | None = None) -> Iterator[Changes]:
        """Return the changes from now on: of one deployment, or of all, to begin with those that there are."""
        changes = Changes(iter((key,)) if key else iter(self._entries))
        readers = self._readers_of.setdefault(key, []) if key else self._readers
        readers.append(changes)
        try:
            yield changes
        finally:
            readers.remove(changes)
            if key and not readers:
                del self._readers_of[key]

    def _touch(self, key: ObjectKey, entry: _Entry) -> None:
        entry.last_request_s = self._clock()
        if self._entries.get(key) is entry:  # else it is gone, and another may have its name
            self._changed(key)

    def _changed(self, key: ObjectKey, *, is_pressing: bool = False) -> None:
        for changes in (*self._readers, *self._readers_of.get(key, ())):
            changes.add(key, is_pressing=is_pressing)


def _figures(entry: _Entry) -> tuple[int, int, int, float]:
    """Return how many workers are awake, what runs and waits on them, and their mean usage."""
    loads = entry.loads.values()
    return len(loads), sum(load.running for load in loads), sum(load.waiting for load in loads), entry.mean_usage
