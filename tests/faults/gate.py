"""A small HTTP proxy between one operator and the API server, failing as a test says: by call, by line of a watch."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.faults.connections import end_connections

_HOP = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}
_WRITES = {"POST", "PUT", "PATCH", "DELETE"}


@dataclass(frozen=True)
class Call:
    """One request of the operator."""

    method: str
    path: str
    is_watch: bool

    @property
    def is_write(self) -> bool:
        """Return whether it changes something."""
        return self.method in _WRITES

    @property
    def is_lease(self) -> bool:
        """Return whether it is about the lease."""
        return "/leases" in self.path


Answer = web.StreamResponse | None


async def _forward(_: Call) -> Answer:
    return None


async def _pass(_: Call, __: int) -> None:
    return None


def refusal(status: int, reason: str, retry_after_s: int | None = None) -> web.Response:
    """Return what an API server, or a load balancer before it, says when it cannot."""
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s is not None else {}
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason}
    return web.json_response({**body, "code": status}, status=status, headers=headers)


class Hangup(Exception):
    """Raised by a hook: the connection is cut without an answer."""


class WatchStream:
    """One open watch: lines pass through, are kept back, or are added."""

    def __init__(self, call: Call, response: web.StreamResponse) -> None:
        """Take the answer that is being written."""
        self.call = call
        self.is_stalled = False
        self._response = response

    async def write(self, line: bytes) -> None:
        """Add a line, as if the server had sent it."""
        with suppress(ConnectionError):
            await self._response.write(line + b"\n")


class Gate:
    """The proxy. Set `before` to answer in the server's place, `after` to act once the server has done the work."""

    def __init__(self, url: str, ca: Path, on_change: Callable[[], None]) -> None:
        """Take the API server's address, its CA, and whom to tell of every call."""
        self._url = url
        self._ca = ca
        self._on_change = on_change
        self._session: aiohttp.ClientSession
        self.calls: list[Call] = []
        self.watches: list[WatchStream] = []  # those that are open
        self.before: Callable[[Call], Awaitable[Answer]] = _forward
        self.after: Callable[[Call, int], Awaitable[None]] = _pass

    def reset(self) -> None:
        """Let everything through again."""
        self.before, self.after = _forward, _pass

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Serve while the context lasts; yields the address."""
        tls = ssl.create_default_context(cafile=str(self._ca))
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None)
        ) as self._session:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            try:
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
            finally:
                await runner.cleanup()
                await end_connections(self._session)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = Call(request.method, request.path, request.query.get("watch") in {"true", "1"})
        self.calls.append(call)
        self._on_change()
        try:
            return await self.before(call) or await self._relay(call, request)
        except (Hangup, aiohttp.ClientError):
            if request.transport:
                request.transport.abort()
            return web.Response(status=502)

    async def _relay(self, call: Call, request: web.Request) -> web.StreamResponse:
        """Send the request on, and its answer back."""
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        body = await request.read()
        async with self._session.request(
            request.method, f"{self._url}{request.raw_path}", headers=headers, data=body or None
        ) as answer:
            if call.is_watch and answer.status == 200:
                return await self._relay_watch(call, request, answer)
            content = await answer.read()
            await self.after(call, answer.status)
            kept = {name: value for name, value in answer.headers.items() if name in {"Content-Type", "Retry-After"}}
            return web.Response(status=answer.status, body=content, headers=kept)

    async def _relay_watch(
        self, call: Call, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        stream, rest = WatchStream(call, response), b""
        self.watches.append(stream)
        self._on_change()
        try:
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if not stream.is_stalled:
                        await response.write(line + b"\n")
        except ConnectionError:
            pass
        finally:
            self.watches.remove(stream)
        return response
