"""A network cable between two programs in one process of ours: counts signs of life, and can lose everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.faults.raw_http2 import cut

_CHUNK_BYTES = 1 << 16
_PING = b"\x00\x00\x08\x06\x00"  # eight bytes, PING, no ACK


class Wire:
    """Passes bytes on, until it is `cut`: then nothing, and it closes nothing."""

    def __init__(self, upstream_port: int) -> None:
        """Take the port of loopback that it leads to."""
        self._upstream_port = upstream_port
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.num_pings = 0  # HTTP/2's signs of life that the client asked for, where one came by itself
        self.is_cut = False

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Wire]:
        """Listen while the context lasts."""
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(reader, far_writer, is_sent=True))
                tasks.create_task(self._pass(far_reader, writer, is_sent=False))
        finally:
            for each in (writer, far_writer):
                await cut(each)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_sent: bool) -> None:
        """Pass one direction on until it ends."""
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK_BYTES):
                self.num_pings += is_sent and data.startswith(_PING)
                if not self.is_cut:
                    writer.write(data)
        writer.transport.abort()
