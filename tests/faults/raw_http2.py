"""HTTP/2 byte by byte, as no client library would speak it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
_CANCEL = (8).to_bytes(4, "big")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def header(name: str, value: str) -> bytes:
    """Return a header field as HPACK's literal that is not indexed; both are shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def request_headers(path: str) -> bytes:
    """Return the header block of a gRPC call."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "h", "te": "trailers"}
    return b"".join(header(name, value) for name, value in (fields | {"content-type": "application/grpc"}).items())


def cancelled_call(stream: int, path: str) -> bytes:
    """Return a call that is begun and at once cancelled."""
    return frame(HEADERS, END_HEADERS, stream, request_headers(path)) + frame(RST_STREAM, 0, stream, _CANCEL)


class Connection:
    """One connection, which may say anything."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take both ends."""
        self._reader = reader
        self._writer = writer

    async def say(self, *frames: bytes) -> bool:
        """Send; False if the other side has closed."""
        try:
            self._writer.write(b"".join(frames))
            await self._writer.drain()
        except ConnectionError:
            return False
        return not self._reader.at_eof()

    async def until_closed(self) -> bytes:
        """Read to the end, however it comes."""
        received = bytearray()
        try:
            while data := await self._reader.read(1 << 16):
                received += data
        except ConnectionError:
            pass
        return bytes(received)


async def cut(writer: asyncio.StreamWriter) -> None:
    """Break a connection off, and wait until its socket is closed: the loop may end right after."""
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def connected(port: int, greeting: bytes = PREFACE + frame(SETTINGS, 0, 0)) -> AsyncIterator[Connection]:
    """Yield a connection to a port of loopback, on which this has been said."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = Connection(reader, writer)
    await connection.say(greeting)
    try:
        yield connection
    finally:
        await cut(writer)
