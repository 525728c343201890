"""Numbers what is told of the cache, keeps the last of it, and says that nothing is known once an engine is gone.

Knows no sockets. Subscribers follow the numbers over every engine of this front, and see a gap if they missed some.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import msgspec

from dormouse_worker.common.ipc import EngineStatus, State
from dormouse_worker.common.kv_events import AllBlocksCleared, EventBatch, KvEventsConfig

MAX_KEPT_BYTES = 16 << 20
_HAVE_A_CACHE = {State.READY, State.ASLEEP, State.WAKING}


class Kept(NamedTuple):
    """A batch as it was sent."""

    number: int
    payload: bytes


NextKept = Callable[[int], Kept | None]


class Transport(Protocol):
    """What carries batches to subscribers."""

    def open(self, next_kept: NextKept) -> None:
        """Begin; whoever asks for batches again gets those that are kept. Raises RuntimeError naming the flag."""

    def send(self, kept: Kept) -> None:
        """Give it to who listens, as far as there is room; never waits."""

    async def close(self) -> None:
        """End; safe when it was never opened."""


class NoPublisher:
    """Nobody is told anything."""

    def start(self) -> None:
        """Begin to tell. Raises RuntimeError naming the flag."""

    async def stop(self) -> None:
        """Tell nobody any more; safe when it was never started."""

    def publish(self, batches: Iterable[bytes]) -> None:
        """Tell what an engine says of its cache."""

    def clear(self) -> None:
        """There is no cache any more."""

    def follow(self, status: EngineStatus) -> None:
        """An engine is in this state: in some there is no cache."""


class Publisher(NoPublisher):
    """Owns the numbers of batches, and the last batches."""

    def __init__(self, transport: Transport, config: KvEventsConfig, now: Callable[[], float]) -> None:
        """`now` = seconds since 1970."""
        self._transport, self._now = transport, now
        self._most = config.buffer_steps if config.replay_endpoint else 0
        self._kept: deque[bytes] = deque()
        self._num_kept_bytes = self._next = 0
        self._is_clear = False

    def __repr__(self) -> str:
        return f"Publisher(next={self._next}, kept={len(self._kept)}, bytes={self._num_kept_bytes})"

    def start(self) -> None:
        """See `NoPublisher`. Whoever knew the worker that had this address before learns that its cache is gone."""
        self._transport.open(self.next_kept)
        self.clear()

    async def stop(self) -> None:
        """See `NoPublisher`."""
        await self._transport.close()

    def publish(self, batches: Iterable[bytes]) -> None:
        """See `NoPublisher`."""
        for payload in batches:
            self._is_clear = False
            self._say(payload)

    def clear(self) -> None:
        """See `NoPublisher`. Nothing happens if that was the last thing said."""
        if not self._is_clear:
            self._is_clear = True
            self._say(msgspec.msgpack.encode(EventBatch(self._now(), [AllBlocksCleared()])))

    def follow(self, status: EngineStatus) -> None:
        """See `NoPublisher`."""
        if status.state not in _HAVE_A_CACHE:
            self.clear()

    def next_kept(self, number: int) -> Kept | None:
        """Return the first batch of this number or a higher one that is kept; None = there is none."""
        first = self._next - len(self._kept)
        number = max(number, first)
        return Kept(number, self._kept[number - first]) if number < self._next else None

    def _say(self, payload: bytes) -> None:
        self._transport.send(Kept(self._next, payload))
        self._next += 1
        self._kept.append(payload)
        self._num_kept_bytes += len(payload)
        while len(self._kept) > self._most or self._num_kept_bytes > MAX_KEPT_BYTES:
            self._num_kept_bytes -= len(self._kept.popleft())
