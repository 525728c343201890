"""Holds the lease in a thread of its own, with a loop and a client of its own, and watches whether the work goes on.

A loop that is busy for seconds must not lose the lease by being too busy to renew it; one that does not turn at all
must not keep it. `Pulse` tells the two apart.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

from dormouse_kube.api import KubeApi
from dormouse_operator.lead.election import Leadership, boot_time_s

STALL_S = 5.0  # a loop that did not turn for so long is not renewed for
_BEAT_S = 0.5


class Pulse:
    """When a loop last turned. Written by the loop that beats, read from any thread."""

    def __init__(self, monotonic: Callable[[], float] = boot_time_s) -> None:
        """Begin as if it just turned."""
        self._monotonic = monotonic
        self._beat = monotonic()

    def beat(self) -> None:
        """Note that the loop turns."""
        self._beat = self._monotonic()

    def is_felt(self) -> bool:
        """Return whether the loop turned lately."""
        return self._monotonic() - self._beat <= STALL_S

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(_BEAT_S)


Connect = Callable[[], Awaitable[AbstractAsyncContextManager[KubeApi]]]


class LeaseThread:
    """A Leadership in another thread, to be used as a context manager. Its methods are called from the own loop."""

    def __init__(self, connect: Connect, lead: Callable[[KubeApi], Leadership]) -> None:
        """Take what logs in and what makes the Leadership; both are called in the thread."""
        self._connect = connect
        self._lead = lead
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leadership: Leadership | None = None
        self._end: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        """Show whose thread it is."""
        return f"LeaseThread({self._leadership!r})"

    async def __aenter__(self) -> Self:
        """Start the thread and log in. Raises what `connect` raises."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        own = asyncio.get_running_loop()

        def tell(error: BaseException | None) -> None:
            if not ready.done():
                ready.set_exception(error) if error else ready.set_result(None)

        def work() -> None:
            try:
                asyncio.run(self._serve(lambda: own.call_soon_threadsafe(tell, None)))
            except BaseException as error:  # noqa: BLE001  # whatever it is, the one who waits hears of it
                own.call_soon_threadsafe(tell, error)

        self._thread = threading.Thread(target=work, name="lease", daemon=True)
        self._thread.start()
        await ready
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the thread."""
        assert self._loop, "it was started"
        assert self._end, "it was started"
        assert self._thread, "it was started"
        self._loop.call_soon_threadsafe(self._end.set)
        await asyncio.to_thread(self._thread.join)

    @property
    def leadership(self) -> Leadership:
        """Return what runs in the thread; only `check`, `leads` and `epoch` may be used from here."""
        assert self._leadership, "it was started"
        return self._leadership

    @property
    def epoch(self) -> int:
        """See Leadership."""
        return self.leadership.epoch

    @property
    def leads(self) -> bool:
        """See Leadership."""
        return self.leadership.leads

    def check(self) -> None:
        """See Leadership."""
        self.leadership.check()

    async def acquire(self) -> None:
        """See Leadership."""
        await self._there(self.leadership.acquire())

    async def keep(self) -> None:
        """See Leadership."""
        await self._there(self.leadership.keep())

    async def raise_above(self, epoch: int) -> None:
        """See Leadership."""
        await self._there(self.leadership.raise_above(epoch))

    async def release(self) -> None:
        """See Leadership."""
        await self._there(self.leadership.release())

    async def _there(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run something in the thread and wait for it here; cancelling reaches it."""
        assert self._loop, "it was started"
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    async def _serve(self, on_ready: Callable[[], object]) -> None:
        """Live in the thread: log in, then run what is asked for until the end."""
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with await self._connect() as kube:
            self._leadership = self._lead(kube)
            on_ready()
            await self._end.wait()
