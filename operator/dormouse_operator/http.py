"""The operator's HTTP door: /metrics, /healthz (the loop turns), /readyz (it leads, or waits to)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST


@asynccontextmanager
async def serve_http(
    port: int, *, render_metrics: Callable[[], bytes], is_ready: Callable[[], bool], host: str | None = None
) -> AsyncIterator[int]:
    """Serve on one address, or on all, while the context lasts; yields the port that was bound."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=render_metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        ready = is_ready()
        return web.Response(text="ok\n" if ready else "starting\n", status=200 if ready else 503)

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
