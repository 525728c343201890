"""Port-forwarding: local TCP connections, each carried by a websocket of its own to a pod's port.

On the websocket (v4.channel.k8s.io) the first byte of a message is its channel: 0 data, 1 an error in words. The first
message of each channel holds the port's number only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import aiohttp

from dormouse_kube.errors import KubeError

_DATA, _ERROR = 0, 1
_CHUNK_BYTES = 64 << 10


class Pipe(Protocol):
    """One connection to the pod."""

    async def send(self, data: bytes) -> None:
        """Pass bytes on."""
        ...

    async def receive(self) -> bytes:
        """Return the next bytes, b"" at the end."""
        ...

    async def close(self) -> None:
        """End the connection. Safe to call twice."""
        ...


class Tunnel:
    """A Pipe over a websocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Take an open websocket."""
        self._socket = socket
        self._greeted: set[int] = set()

    async def send(self, data: bytes) -> None:
        """See Pipe."""
        await self._socket.send_bytes(bytes([_DATA]) + data)

    async def receive(self) -> bytes:
        """See Pipe. What the kubelet says of an error ends the connection."""
        while True:
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                return b""
            channel, data = message.data[0], message.data[1:]
            if channel not in self._greeted:
                self._greeted.add(channel)  # the port's number
            elif channel == _ERROR:
                return b""
            elif data:
                return bytes(data)

    async def close(self) -> None:
        """See Pipe."""
        await self._socket.close()


@asynccontextmanager
async def forwarded(connect: Callable[[], Awaitable[Pipe]]) -> AsyncIterator[int]:
    """Listen on a free port of 127.0.0.1 and give it; every connection gets a Pipe. Tries one first.

    Raises what `connect` raises, so that a missing right is told at once.
    """
    await (await connect()).close()

    carrying: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(_serve(connect, reader, writer))
        carrying.add(task)
        task.add_done_callback(carrying.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in (left := list(carrying)):
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _serve(
    connect: Callable[[], Awaitable[Pipe]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Carry one connection; without a pipe it is closed."""
    try:
        pipe = await connect()
    except KubeError:
        writer.close()
        return
    await carry(reader, writer, pipe)


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pipe: Pipe) -> None:
    """Pass bytes both ways until one side ends; then end the other."""
    up, down = asyncio.ensure_future(_up(reader, pipe)), asyncio.ensure_future(_down(pipe, writer))
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        writer.close()
        with suppress(OSError):
            await pipe.close()


async def _up(reader: asyncio.StreamReader, pipe: Pipe) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        await pipe.send(data)


async def _down(pipe: Pipe, writer: asyncio.StreamWriter) -> None:
    while data := await pipe.receive():
        writer.write(data)
        await writer.drain()
