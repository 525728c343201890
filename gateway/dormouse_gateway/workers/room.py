"""How much a worker may be given now, from what it tells of itself. Pure arithmetic; knows neither pods nor requests.

A worker that has just woken gets a few requests at first, and twice as many each time it tells that it has taken up
what it got, or one more for each that ends: its caches and kernels are cold, and a thousand held requests at once
would only wait in its queue, from where nobody can send them elsewhere. Beyond its batch it gets a few to wait, so
that it never idles while we hear of a free place.
"""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_gateway.activity import WorkerLoad

FIRST_WINDOW = 8
_MAX_WINDOW = 1 << 16


@dataclass(frozen=True, slots=True)
class WorkerCapacity:
    """What a worker of a deployment computes at a time, and how many more it may keep waiting."""

    max_running: int
    max_waiting: int


@dataclass(slots=True)
class AdmissionWindow:
    """One worker's room. As long as it tells nothing, there is as much as its batch allows."""

    told: WorkerLoad | None = None
    others: int = 0  # requests that it has from elsewhere, as far as it told
    window: int = FIRST_WINDOW

    def tell(self, load: WorkerLoad | None, outstanding: int) -> None:
        """Take what the worker tells, None when it cannot be heard; `outstanding` are the requests it has from us."""
        was_heard, was_open = self.told is not None, self.is_open
        self.told = load
        total = load.running + load.waiting if load else 0
        self.others = max(0, total - outstanding)
        if not self.is_open:
            return
        if not was_heard:  # it may have been awake for long
            self.window = _MAX_WINDOW
        elif not was_open:
            self.window = max(FIRST_WINDOW, 2 * total, outstanding)
        elif load and not load.waiting:
            self.window = min(_MAX_WINDOW, 2 * self.window)

    def end(self) -> None:
        """Count a request that ended there."""
        self.window = min(_MAX_WINDOW, self.window + 1)

    def takes(self, outstanding: int, batch: WorkerCapacity) -> bool:
        """Return whether the worker may be given one more."""
        limit = batch.max_running + batch.max_waiting
        if self.told is None:
            return outstanding < limit
        is_behind = self.told.waiting > batch.max_waiting  # too little memory for its batch, say
        return not is_behind and outstanding + self.others < limit and outstanding < self.window

    @property
    def is_open(self) -> bool:
        """Return whether the worker says that it takes requests."""
        return self.told is not None and self.told.is_ready
