"""The HTTP side door: GET of a few fixed paths, one answer per connection. Knows nothing of what they report."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

TIMEOUT_S = 5.0  # for a whole exchange: a client that is slower is cut off
MAX_REQUEST_BYTES = 8 << 10
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PHRASES: Mapping[int, str] = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Unavailable",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a path says."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class HttpDoor:
    """Serves paths on one port; each connection is a task of its own, so that a slow reader delays only itself."""

    def __init__(self, paths: Mapping[str, Callable[[], Answer]]) -> None:
        self._paths = paths
        self._server: asyncio.Server | None = None

    async def start(self, host: str | None, port: int) -> int:
        """Listen; return the port. None = every address. Raises OSError if it is taken."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_REQUEST_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(TIMEOUT_S):
                writer.write(_encode(await self._answer(reader)))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return Answer(400, f"no HTTP request of at most {MAX_REQUEST_BYTES} bytes\n".encode())
        method, _, rest = head.decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in {"GET", "HEAD"}:
            return Answer(405, b"only GET is served here\n")
        if path not in self._paths:
            return Answer(404, f"known paths: {', '.join(self._paths)}\n".encode())
        return self._paths[path]()


def _encode(answer: Answer) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status} {_PHRASES[answer.status]}\r\nContent-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + answer.body
