"""The port of the OpenAI-compatible API: listens, serves, and ends in order. Owns uvicorn."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import ceil

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from dormouse_api.listening import listen
from dormouse_gateway.openai.headers import MAX_HEADER_BYTES
from dormouse_gateway.openai.protocol import bounded


class _Server(uvicorn.Server):
    """Signals are the program's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


class OpenAIDoor:
    """Serves an ASGI application on one port."""

    def __init__(self, app: ASGIApp, *, timeout_s: float, max_connections: int, tls: ssl.SSLContext | None) -> None:
        """Take what to serve, how long clients may take, how many there may be, and what to prove the name with."""
        self._protocol = bounded(timeout_s, max_connections)
        config = uvicorn.Config(
            _unless_cut_off(app),
            http=self._protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # what is no HTTP is the client's business
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_keep_alive=ceil(timeout_s),  # longer than clients keep theirs: else one asks as its connection goes
            ssl_context_factory=(lambda *_: tls) if tls else None,
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises OSError."""
        listener = listen(host, port)
        await self.serve(listener)
        return int(listener.getsockname()[1])

    async def serve(self, listener: socket.socket) -> None:
        """Serve on a bound socket; returns once it is served."""
        self._serving = asyncio.create_task(self._server.serve([listener]), name="openai")
        while not self._server.started and not self._serving.done():  # noqa: ASYNC110  # uvicorn has no event
            await asyncio.sleep(0)

    async def stop(self, timeout_s: float) -> None:
        """Take no more requests, let running ones end, cut off what runs for longer."""
        self._server.config.timeout_graceful_shutdown = timeout_s  # type: ignore[assignment]  # any number does
        self._protocol.is_ending = True
        self._server.should_exit = True
        if self._serving:
            await self._serving


def _unless_cut_off(app: ASGIApp) -> ASGIApp:
    """Return the application, which ends quietly when it has run for longer than the drain may take."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return serve
