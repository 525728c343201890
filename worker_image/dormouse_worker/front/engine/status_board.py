"""What the front knows of its worker's state, and who is waiting for it to change. Knows neither sockets nor gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from dormouse_worker.common.commands import STANDBY_LEVEL, TAGS
from dormouse_worker.common.ipc import EngineStatus, State
from dormouse_worker.common.lifecycle import combine, is_allowed

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Changes:
    """Wakes everybody who waits, whenever something changed. Checking and waiting is atomic within one event loop."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self.is_closed = False  # no more changes: streams end

    def notify(self) -> None:
        """Wake all waiters."""
        self._next.set()
        self._next = asyncio.Event()

    def close(self) -> None:
        """Wake all waiters for the last time."""
        self.is_closed = True
        self.notify()

    async def wait(self) -> None:
        """Wait for the next `notify`."""
        await self._next.wait()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until the condition holds; returns at once if it does."""
        while not holds():
            await self.wait()

    async def stream(
        self, snapshot: Callable[[], T], *, min_interval_s: float, is_urgent: Callable[[T], bool] = lambda _: False
    ) -> AsyncIterator[T]:
        """Yield the snapshot at once and then whenever it differs, never more often than the interval. Ends on close.

        A slow reader skips what happened in between; it always gets the newest. `is_urgent` is given what was yielded
        last, and tells whether the next one has to come before the interval is over.
        """
        last: T | None = None
        while not self.is_closed:
            current = snapshot()
            if current == last:
                await self.wait()
                continue
            yield current
            last = current
            with suppress(TimeoutError):
                async with asyncio.timeout(min_interval_s):
                    await self.until(lambda: self.is_closed or is_urgent(current))  # noqa: B023  # awaited at once


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a worker is FAILED."""

    reason: str  # CamelCase
    message: str


class StatusBoard:
    """Owns the worker's state: the engine's last status, the front's drain flag, and a failure of the front's own."""

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        self._engine = EngineStatus(state=State.STARTING)
        self._draining = False
        self._failure: Failure | None = None

    def __repr__(self) -> str:
        return f"StatusBoard({self.state}, engine={self._engine.state}, draining={self._draining})"

    @property
    def engine(self) -> EngineStatus:
        """Return what the engine said last."""
        return self._engine

    @property
    def state(self) -> State:
        """Return the worker's state."""
        if self._failure is not None:
            return State.FAILED
        return combine(self._engine.state, draining=self._draining)

    @property
    def failure(self) -> Failure | None:
        """Return why the worker is FAILED, None if it is not. A failure of the front's own comes first."""
        if self._failure is None and self._engine.state is State.FAILED:
            return Failure(self._engine.failure_reason, self._engine.failure_message)
        return self._failure

    def apply(self, status: EngineStatus) -> None:
        """Take the engine's word. A transition outside the table is a bug of ours and fails the worker."""
        old, new = self.state, combine(status.state, draining=self._draining)
        if self._failure is not None:
            return
        if not is_allowed(old, new):
            self.fail("Internal", f"the engine went from {old} to {new}, which the lifecycle does not allow")
            return
        self._engine = status
        if new is not State.DRAINING:
            self._draining = False
        if old is not new:
            logger.info("state changed", extra={"fields": {"old": old, "new": new}})
        self.changes.notify()

    def restart(self) -> None:
        """Forget an engine that is gone: the next one begins at STARTING. A failure of the front's own stays."""
        self._engine = EngineStatus(state=State.STARTING)
        self._draining = False
        self.changes.notify()

    def stand_by(self, seconds: float) -> None:
        """Say that there is no engine and shall be none; why it or the front failed is over. Its report stays.

        seconds: what the end of the engine took; 0 = none was there.
        """
        held = {"num_gpu_blocks": 0, "num_cpu_blocks": 0, "residual_bytes": 0, "freed_bytes": 0, "host_copy_bytes": 0}
        took = {"last_sleep_seconds": seconds, "sleep_phases": {"end": seconds} if seconds else {}}
        failure = {"failure_reason": "", "failure_message": ""}
        depth = {"state": State.STANDBY, "sleep_level": STANDBY_LEVEL, "sleeping_tags": TAGS}
        self._failure = None
        self.replace(msgspec.structs.replace(self._engine, **depth, **held, **took, **failure))

    def replace(self, status: EngineStatus) -> None:
        """Take what is told in place of what the engine said last. A failure of the front's own stays."""
        self._engine = status
        self._draining = False
        logger.info("state changed", extra={"fields": {"new": self.state, "by": "the front"}})
        self.changes.notify()

    def start_draining(self) -> bool:
        """Refuse new requests from now on; return whether that is news. Only READY can drain."""
        if self.state is not State.READY:
            return False
        self._draining = True
        self.changes.notify()
        return True

    def stop_draining(self) -> None:
        """Take requests again; changes nothing if the worker does not drain."""
        self._draining = False
        self.changes.notify()

    def fail(self, reason: str, message: str) -> None:
        """Enter FAILED for good; the first reason stays."""
        if self._failure is None:
            self._failure = Failure(reason, message)
            logger.error("worker failed", extra={"fields": {"reason": reason, "message": message}})
            self.changes.notify()
