"""One worker's stream of many Generate calls (`dormouse.v1.Relay`), and each call on it, which reads as gRPC's own do.

A call is carried only while the stream is open: until a worker has said that it knows the service, while the stream is
being opened again after a break, and with workers that do not know it, calls go by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import grpc
from grpc import aio

from dormouse_api.names import METADATA_RELAY, RELAY_SERVICE
from dormouse_api.status import STATUS_DETAILS
from dormouse_api.v1 import relay_pb2 as wire
from dormouse_gateway.clients.requests import Metadata

MAX_REQUEST_BYTES = 64 << 10  # a larger one would hold up the others: it goes by itself
MAX_BATCH_BYTES = 256 << 10  # of requests in one message, the last one not counted
PAUSE_AT, RESUME_AT = 16, 4  # messages that wait for a call's reader

_LOG = logging.getLogger(__name__)
_END: Any = aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_PAUSES_S = {  # after a worker said that it carries nothing
    grpc.StatusCode.UNIMPLEMENTED: math.inf,
    grpc.StatusCode.PERMISSION_DENIED: 60.0,  # its clock may be wrong, or ours
}


class Relay:
    """The stream to one worker, over a channel that belongs to others."""

    def __init__(
        self, channel: aio.Channel, proof: Callable[[], Metadata], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take what proves the gateway's role, asked for whenever the stream is opened. Opens nothing."""
        self._clock = clock
        self._carry: Any = channel.stream_stream(
            f"/{RELAY_SERVICE}/Carry",
            request_serializer=wire.CarryRequest.SerializeToString,
            response_deserializer=wire.CarryResponse.FromString,
        )
        self._proof = proof
        self._numbers = count(1)
        self._calls: dict[int, CarriedCall] = {}
        self._begun: deque[wire.CarriedCall] = deque()  # not sent yet
        self._outgoing = wire.CarryRequest()  # the rest of the next message
        self._is_filled = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._shut_until_s = 0.0  # the worker said that it carries nothing
        self.is_open = False

    def __repr__(self) -> str:
        """Show whether calls can be carried, and how many are."""
        return f"Relay({'open' if self.is_open else 'closed'}, {len(self._calls)} calls)"

    def open_soon(self) -> None:
        """Begin to open the stream unless that is under way, done or in vain."""
        if self._clock() >= self._shut_until_s and (self._running is None or self._running.done()):
            self._running = asyncio.get_running_loop().create_task(self._run())

    def call(self, body: bytes, *, timeout_s: float, metadata: Metadata) -> CarriedCall:
        """Begin a call; the stream must be open."""
        number = next(self._numbers)
        carried = self._calls[number] = CarriedCall(self, number, timeout_s)
        pairs = [wire.CarriedMetadata(key=key, value=_to_bytes(value)) for key, value in metadata]
        self._begun.append(wire.CarriedCall(call=number, request=body, metadata=pairs, timeout_s=timeout_s))
        self._is_filled.set()
        return carried

    async def aclose(self) -> None:
        """End the stream and what it carries."""
        if self._running:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def pause(self, number: int) -> None:
        """Ask for no more of a call's messages."""
        self._outgoing.pause.append(number)
        self._is_filled.set()

    def resume(self, number: int) -> None:
        """Ask for them again."""
        self._outgoing.resume.append(number)
        self._is_filled.set()

    def drop(self, number: int) -> None:
        """Have the worker cancel a call that nobody reads any more."""
        if self._calls.pop(number, None):
            self._outgoing.cancel.append(number)
            self._is_filled.set()

    async def _run(self) -> None:
        """Open the stream, and pass on what comes until it ends; then all calls on it have failed."""
        stream, why = self._carry(metadata=aio.Metadata(*self._proof())), ""
        try:
            greeting = await stream.initial_metadata()  # of a stream that failed, too
            if any(key == METADATA_RELAY for key, _ in greeting):
                await self._exchange(stream)
            await stream.read()  # raises what went wrong
            why = "the worker ended the stream"
        except aio.AioRpcError as error:
            why = f"{error.code().name}: {error.details()}"
            self._shut_until_s = self._clock() + _PAUSES_S.get(error.code(), 0.0)
        finally:
            stream.cancel()
            self._close(why or "the stream was ended")
        _LOG.debug("a worker carries no calls any more: %s", why)

    async def _exchange(self, stream: Any) -> None:
        self._begun.clear()
        self._outgoing = wire.CarryRequest()
        self.is_open = True
        writing = asyncio.create_task(self._write(stream))
        try:
            while (response := await stream.read()) is not _END:
                for part in response.parts:
                    if self._take(part):
                        await _let_go_on()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _write(self, stream: Any) -> None:
        while True:
            await self._is_filled.wait()
            self._is_filled.clear()
            await stream.write(self._next())
            while self._begun:
                await stream.write(self._next())

    def _next(self) -> wire.CarryRequest:
        """Return the next message. What was dropped before it was sent is not sent."""
        message, self._outgoing = self._outgoing, wire.CarryRequest()
        num_bytes = 0
        while self._begun and num_bytes < MAX_BATCH_BYTES:
            begun = self._begun.popleft()
            if begun.call in self._calls:
                message.begin.append(begun)
                num_bytes += begun.ByteSize()
        return message

    def _take(self, part: wire.CarriedPart) -> bool:
        """Give a call what is its, and return whether it is its first message; the call may be gone."""
        if part.WhichOneof("what") == "message":
            call = self._calls.get(part.call)
            return call is not None and call.feed(part.message)
        call = self._calls.pop(part.call, None)
        if call:
            call.end(_read_status(part.end))
        return False

    def _close(self, why: str) -> None:
        """Nothing is carried any more: to the calls this is a connection that broke."""
        self.is_open = False
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.end(_error(grpc.StatusCode.UNAVAILABLE, why))


class CarriedCall:
    """One call: `read` and `cancel` do what they do on a call of gRPC's own."""

    def __init__(self, relay: Relay, number: int, timeout_s: float) -> None:
        self._relay = relay
        self._number = number
        self._messages: deque[bytes] = deque()
        self._is_paused = False
        self._has_begun = False  # to answer
        self._is_ended = False
        self._error: BaseException | None = None
        self._reader: asyncio.Future[None] | None = None
        late = _error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._leave, late)

    def __repr__(self) -> str:
        """Show what waits to be read."""
        return f"CarriedCall({self._number}, {len(self._messages)} messages{', ended' if self._is_ended else ''})"

    async def read(self) -> Any:
        """Return the next message, EOF after the last. Raises AioRpcError; CancelledError after `cancel`."""
        while not self._messages:
            if self._error:
                raise self._error
            if self._is_ended:
                return _END
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        message = self._messages.popleft()
        if self._is_paused and len(self._messages) <= RESUME_AT and not self._is_ended:
            self._is_paused = False
            self._relay.resume(self._number)
        return message

    def cancel(self) -> bool:
        """Have the worker end the call, if it has not ended; return whether that was so."""
        return self._leave(asyncio.CancelledError())

    def feed(self, message: bytes) -> bool:
        """Take a message; return whether it is the first."""
        is_first, self._has_begun = not self._has_begun, True
        self._messages.append(message)
        if len(self._messages) >= PAUSE_AT and not self._is_paused:
            self._is_paused = True
            self._relay.pause(self._number)
        self._wake()
        return is_first

    def end(self, error: BaseException | None) -> None:
        """Take how the call ended, None for well, to be told after its messages."""
        self._is_ended, self._error = True, error
        self._timer.cancel()
        self._wake()

    def _leave(self, error: BaseException) -> bool:
        if self._is_ended:
            return False
        self._relay.drop(self._number)
        self._messages.clear()
        self.end(error)
        return True

    def _wake(self) -> None:
        if self._reader and not self._reader.done():
            self._reader.set_result(None)


async def _let_go_on() -> None:
    """Let who was given a first message begin to send it, which takes a task more than to send a later one."""
    for _ in range(2):
        await asyncio.sleep(0)


def _read_status(status: wire.CarriedStatus) -> aio.AioRpcError | None:
    if status.code == grpc.StatusCode.OK.value[0]:
        return None
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    return _error(code, status.message, ((STATUS_DETAILS, status.details),) if status.details else ())


def _error(code: grpc.StatusCode, details: str, trailers: Sequence[tuple[str, bytes]] = ()) -> aio.AioRpcError:
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(*trailers), details, None)


def _to_bytes(value: str | bytes) -> bytes:
    return value.encode("latin-1", "replace") if isinstance(value, str) else value
