"""The HTTP side door: /metrics, /healthz, /readyz. Knows nothing of what they report."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HttpDoor:
    """Serves three paths on one port."""

    def __init__(self, *, metrics: Callable[[], bytes], is_ready: Callable[[], bool]) -> None:
        """Take where the answers come from."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(app, access_log=None)
        self._read_metrics = metrics
        self._is_ready = is_ready

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. A host of [::] or 0.0.0.0 means every address. Raises OSError."""
        await self._runner.setup()
        address = None if host in {"[::]", "0.0.0.0"} else host.strip("[]")  # noqa: S104  # compared, not bound
        await web.TCPSite(self._runner, address, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the port."""
        await self._runner.cleanup()

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._read_metrics(), headers={"Content-Type": _METRICS_TYPE})

    async def _healthz(self, _request: web.Request) -> web.Response:
        """The event loop turns: that is all that a restart could help."""
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        if self._is_ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not ready: the models are not listed yet, or the gateway is ending\n")
