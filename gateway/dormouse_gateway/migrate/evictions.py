"""Workers that must go, and the streams still on them: those that last are told to move. Owns who stays and who leaves.

A worker that goes away, or drains, first may finish what it has. What it has not finished by then moves, a few streams
at a time, while another ready worker of the same revision is there; without one they stay as long as the worker does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from dormouse_gateway.model import Endpoint, EndpointId

_AT_ONCE = 8  # streams told to leave in one go: their prompts are computed anew on the others
_NEXT_S = 0.25


class Timer(Protocol):
    """Something that will happen, unless cancelled."""

    def cancel(self) -> None:
        """Let it not happen."""


CallLater = Callable[[float, Callable[[], None]], Timer]


@dataclass(eq=False, slots=True)
class StreamLease:
    """One stream on one worker."""

    may_leave: Callable[[], bool]  # whether it could go on elsewhere
    leave: Callable[[], object]  # ends it here, so that it does
    must_leave: bool = False  # it was told to

    def tell(self) -> None:
        """Have the stream leave, once."""
        self.must_leave = True
        self.leave()


class Evictions:
    """Knows which streams are where."""

    def __init__(
        self, has_peer: Callable[[Endpoint], bool], *, after_s: float, call_later: CallLater | None = None
    ) -> None:
        """Take who knows of other workers, and how long a worker that must go may take to finish."""
        self._has_peer = has_peer
        self._after_s = after_s
        self._call_later: CallLater = call_later or (
            lambda delay_s, do: asyncio.get_running_loop().call_later(delay_s, do)
        )
        self._streams: dict[EndpointId, set[StreamLease]] = {}
        self._timers: dict[EndpointId, Timer] = {}

    def __repr__(self) -> str:
        """Show who leaves, and with how many streams."""
        leaving = ", ".join(f"{key.address}: {len(self._streams.get(key, ()))}" for key in self._timers)
        return f"Evictions({leaving})"

    @contextmanager
    def stay(self, endpoint: Endpoint, stay: StreamLease) -> Iterator[StreamLease]:
        """Know of a stream as long as it is on this worker."""
        streams = self._streams.setdefault(endpoint.id, set())
        streams.add(stay)
        try:
            yield stay
        finally:
            streams.discard(stay)
            if not streams and self._streams.get(endpoint.id) is streams:
                del self._streams[endpoint.id]

    def note(self, known: Endpoint | None, now: Endpoint | None) -> None:
        """Take what a pod's endpoint was and what it is: None when it cannot be called, or not any more."""
        if known and (now is None or now.id != known.id):
            self.leaves(known)
        if now and (known is None or now.id != known.id):
            self.remains(now)

    def note_draining(self, endpoint: Endpoint, is_draining: bool) -> None:  # noqa: FBT001  # a flag as it was told
        """Take what a worker says of itself."""
        if is_draining:
            self.leaves(endpoint)
        else:
            self.remains(endpoint)

    def leaves(self, endpoint: Endpoint) -> None:
        """The worker must go, or drains. Changes nothing if that is known."""
        if endpoint.id not in self._timers:
            self._arm(endpoint, self._after_s)

    def remains(self, endpoint: Endpoint) -> None:
        """The worker takes requests after all. Changes nothing if it was not leaving."""
        timer = self._timers.pop(endpoint.id, None)
        if timer:
            timer.cancel()

    def close(self) -> None:
        """Tell nobody any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _arm(self, endpoint: Endpoint, delay_s: float) -> None:
        self._timers[endpoint.id] = self._call_later(delay_s, lambda: self._due(endpoint))

    def _due(self, endpoint: Endpoint) -> None:
        """Tell the next few streams, as long as there are any."""
        streams = self._streams.get(endpoint.id)
        if not streams:
            del self._timers[endpoint.id]
            return
        movable = (stay for stay in streams if not stay.must_leave and stay.may_leave())
        told = list(islice(movable, _AT_ONCE)) if self._has_peer(endpoint) else []
        for stay in told:
            stay.tell()
        self._arm(endpoint, _NEXT_S)
