"""What calls that share a stream have to say, gathered into as few messages as there can be.

While a message is being written, what comes up waits for the next one, and calls gather their tokens meanwhile: a slow
gateway makes answers longer, not more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dormouse_api.v1 import relay_pb2 as wire

MAX_BATCH_BYTES = 64 << 10  # of answers in one message, the last one not counted

Write = Callable[[wire.CarryResponse], Awaitable[None]]


class RelayWriter:
    """What waits to be written. One message is written at a time, and has one answer of each call at most."""

    def __init__(self) -> None:
        self._parts: list[wire.CarriedPart] = []
        self._num_first = 0  # of the parts, the first answers of their calls
        self._calls: set[int] = set()  # that have an answer among the parts
        self._num_bytes = 0
        self._is_writing = False
        self._is_filled = asyncio.Event()
        self._is_written = asyncio.Event()  # another one after each message
        self._is_empty = set_event()

    def __repr__(self) -> str:
        return f"RelayWriter({len(self._parts)} parts)"

    async def put(self, call: int, message: bytes, *, is_first: bool = False) -> None:
        """Add a call's answer to the next message that has room for it; nothing is added to one while it is written.

        The first answers of calls stand before the others.
        """
        while self._is_writing or call in self._calls or self._num_bytes >= MAX_BATCH_BYTES:
            await self._is_written.wait()
        self._calls.add(call)
        self._num_bytes += len(message)
        self._add(wire.CarriedPart(call=call, message=message), self._num_first if is_first else len(self._parts))
        self._num_first += is_first

    def end(self, call: int, status: wire.CarriedStatus) -> None:
        """Add how a call ended."""
        self._add(wire.CarriedPart(call=call, end=status), len(self._parts))

    async def until_empty(self) -> None:
        """Wait until everything is written."""
        await self._is_empty.wait()

    async def write_to(self, write: Write) -> None:
        """Write whatever comes, until cancelled."""
        while True:
            await self._is_filled.wait()
            self._is_filled.clear()
            parts, self._parts, self._calls = self._parts, [], set()
            self._num_first = self._num_bytes = 0
            self._is_writing = True
            await write(wire.CarryResponse(parts=parts))
            self._is_writing = False
            if not self._parts:
                self._is_empty.set()
            written, self._is_written = self._is_written, asyncio.Event()
            written.set()
            await asyncio.sleep(0)  # who waited for it goes into the next message, though an end has filled that

    def _add(self, part: wire.CarriedPart, place: int) -> None:
        self._parts.insert(place, part)
        self._is_filled.set()
        self._is_empty.clear()


def set_event() -> asyncio.Event:
    """Return an event that is set."""
    event = asyncio.Event()
    event.set()
    return event
