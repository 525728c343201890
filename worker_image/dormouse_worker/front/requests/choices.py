"""The answers to one prompt, read together: whichever has something gives next. Knows neither gRPC nor the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from dormouse_worker.front.requests.streams import OutputStream, Piece


class Choices:
    """Reads the streams of one call, in turns."""

    def __init__(self, streams: Iterable[OutputStream]) -> None:
        self._turns = deque(streams)

    def __repr__(self) -> str:
        return f"Choices({len(self._turns)} streams)"

    def pop(self) -> tuple[OutputStream, Piece] | None:
        """Return the next piece and whose it is, None if nothing is due. Raises a stream's error after all pieces."""
        for number, stream in enumerate(self._turns, start=1):
            if (piece := stream.pop()) is not None:
                self._turns.rotate(-number)
                return stream, piece
        for stream in self._turns:
            if stream.error is not None:
                raise stream.error
        return None
