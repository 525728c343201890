"""HTTP/1.1 as uvicorn speaks it, with bounds on time and on connections that it lacks, and with our error objects."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dormouse_gateway.openai.errors import ApiError, encoded
from dormouse_gateway.openai.headers import MAX_HEADER_BYTES


class BoundedProtocol(H11Protocol):
    """One connection. Who sends headers slowly, or takes answers slowly, is sent away.

    Two timers: `_reading` runs while a request's headers are not complete, `_writing` while the client takes nothing.
    """

    timeout_s: float = 30.0
    max_connections: int = 2048
    is_ending: bool = False  # the port closes: who has just come through is shown out

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Take a connection, if there is room."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.abort()
            return
        if self.is_ending:
            self.shutdown()  # uvicorn asks only those to go that were there before, and waits for all
            return
        self._reading = self._abort_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget both timers."""
        self._reading = self._stop(self._reading)
        self._writing = self._stop(self._writing)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the time for headers runs from the first one on, whatever follows."""
        super().data_received(data)
        if self.is_answering or self.transport.is_closing():
            self._reading = self._stop(self._reading)
        elif self._reading is None and self.timeout_keep_alive_task is None:
            self._reading = self._abort_later()

    @property
    def is_answering(self) -> bool:
        """Return whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def pause_writing(self) -> None:
        """The client takes less than is sent."""
        super().pause_writing()
        self._writing = self._writing or self._abort_later()

    def resume_writing(self) -> None:
        """The client took it."""
        super().resume_writing()
        self._writing = self._stop(self._writing)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or has too large headers, as an error object."""
        error = ApiError(400, f"{msg} Headers may have {MAX_HEADER_BYTES} bytes together.")
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.abort()  # an answer is under way: nothing can be said any more
            return
        body = encoded(error.body)
        headers = {**error.headers, "content-length": str(len(body)), "connection": "close"}
        head = h11.Response(status_code=400, headers=list(headers.items()), reason=b"Bad Request")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _abort_later(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self.timeout_s, self.transport.abort)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer:
            timer.cancel()


def bounded(timeout_s: float, max_connections: int) -> type[BoundedProtocol]:
    """Return the protocol with these bounds: uvicorn makes one for each connection by itself."""
    return type("Bounded", (BoundedProtocol,), {"timeout_s": timeout_s, "max_connections": max_connections})
