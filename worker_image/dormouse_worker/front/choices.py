"""The answers to one prompt, read together: whichever has something gives next. Knows neither gRPC nor the engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from dormouse_worker.front.streams import OutputStream, Piece


class Choices:
    """Reads the streams of one call, in turns."""

    def __init__(self, streams: Iterable[OutputStream], wake: asyncio.Event) -> None:
        """Take the streams and the event that they share."""
        self._turns = deque(streams)
        self._wake = wake

    def __repr__(self) -> str:
        return f"Choices({len(self._turns)} streams)"

    async def take(self) -> tuple[OutputStream, Piece]:
        """Return the next piece and whose it is; wait if there is nothing. Raises a stream's error after all pieces."""
        while True:
            for _ in range(len(self._turns)):
                stream = self._turns[0]
                self._turns.rotate(-1)
                piece = stream.pop()
                if piece is not None:
                    return stream, piece
            self._raise_error()
            self._wake.clear()
            await self._wake.wait()

    def _raise_error(self) -> None:
        for stream in self._turns:
            if stream.error is not None:
                raise stream.error
