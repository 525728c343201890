"""The HTTP side door: /metrics, /healthz, /readyz. Knows nothing of what they report.

It lives in a thread with an event loop of its own: a probe never waits behind what the gateway's own loop has to do,
and a loop that does not turn any more is told by somebody who still can (`Pulse`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

STALL_S = 10.0  # a loop that did not turn for so long hangs: the longest thing that it does at once takes a second
_BEAT_S = 0.5
_METRICS_S = 5.0  # for the loop to read them
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Pulse:
    """When a loop last turned. Written by the loop that beats, read from any thread."""

    clock: Callable[[], float] = time.monotonic
    beat_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin as if it just turned."""
        self.beat_s = self.clock()

    @property
    def silent_s(self) -> float:
        """Return for how long the loop was not seen to turn."""
        return self.clock() - self.beat_s

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat_s = self.clock()
            await asyncio.sleep(_BEAT_S)


class HttpDoor:
    """Serves three paths on one port. Metrics are read in the loop that started it, the rest needs no loop's time."""

    def __init__(self, *, metrics: Callable[[], bytes], is_ready: Callable[[], bool], pulse: Pulse) -> None:
        """Take where the answers come from; `is_ready` is asked in the door's own thread."""
        self._read_metrics = metrics
        self._is_ready = is_ready
        self._pulse = pulse
        self._own: asyncio.AbstractEventLoop | None = None
        self._owner: asyncio.AbstractEventLoop | None = None
        self._beating: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        self._thread: threading.Thread | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. A host of [::] or 0.0.0.0 means every address. Raises OSError."""
        self._owner, self._own = asyncio.get_running_loop(), asyncio.new_event_loop()
        self._beating = asyncio.create_task(self._pulse.run(), name="pulse")
        self._thread = threading.Thread(target=self._live, args=(self._own,), name="probes", daemon=True)
        self._thread.start()
        address = None if host in {"[::]", "0.0.0.0"} else host.strip("[]")  # noqa: S104  # compared, not bound
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._open(address, port), self._own))

    async def stop(self) -> None:
        """Close the port, and end the thread."""
        if self._own is None or self._beating is None or self._thread is None:
            return
        self._beating.cancel()
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close(), self._own))
        self._own.call_soon_threadsafe(self._own.stop)
        await asyncio.to_thread(self._thread.join)

    @staticmethod
    def _live(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    async def _open(self, address: str | None, port: int) -> int:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, address, port).start()
        return int(self._runner.addresses[0][1])

    async def _close(self) -> None:
        assert self._runner, "it was started"
        await self._runner.cleanup()

    async def _metrics(self, _request: web.Request) -> web.Response:
        """Read them where what they count is changed. A loop that is busy for long shows as a scrape that failed."""
        assert self._owner, "it was started"
        reading = asyncio.run_coroutine_threadsafe(self._in_loop(), self._owner)
        try:
            async with asyncio.timeout(_METRICS_S):
                text = await asyncio.wrap_future(reading)
        except TimeoutError:
            return web.Response(status=503, text=f"the event loop has not turned for {_METRICS_S:g} s\n")
        return web.Response(body=text, headers={"Content-Type": _METRICS_TYPE})

    async def _in_loop(self) -> bytes:
        return self._read_metrics()

    async def _healthz(self, _request: web.Request) -> web.Response:
        """The gateway's event loop turns: that is all that a restart could help."""
        silent_s = self._pulse.silent_s
        if silent_s <= STALL_S:
            return web.Response(text="ok\n")
        return web.Response(status=503, text=f"the event loop has not turned for {silent_s:.0f} s\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        if self._is_ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not ready: the models are not listed yet, or the gateway is ending\n")
