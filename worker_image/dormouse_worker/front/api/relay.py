"""`dormouse.v1.Relay`: many Generate calls over one stream, so that a step's tokens for all of them are one message.

Each call runs as it would alone, in a context of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc
from grpc import aio

from dormouse_api.names import METADATA_RELAY
from dormouse_api.status import STATUS_DETAILS, to_grpc_status
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import relay_pb2 as wire
from dormouse_api.v1 import relay_pb2_grpc as rpc
from dormouse_worker.front.api.answers import unexpected
from dormouse_worker.front.api.relay_writer import RelayWriter, Write, set_event
from dormouse_worker.front.requests.caller import is_in_pod
from dormouse_worker.front.requests.parsing import Reader

LONGEST_S = 1e7  # a call's time; what is longer is cut

Generate = Callable[[Any, Any], AsyncIterator[pb.GenerateResponse]]  # a generator: request, context → responses
_READ = Reader(pb.GenerateRequest)


@dataclass(slots=True)
class Room:
    """How many more calls may be open, over all streams."""

    limit: int
    num_open: int = 0

    @property
    def is_full(self) -> bool:
        """Return whether one more would be too many."""
        return self.num_open >= self.limit


class RelayService(rpc.RelayServicer):
    """Serves every gateway's stream."""

    def __init__(self, generate: Generate, *, max_open_calls: int) -> None:
        """Take who serves a call, and how many may be open at once, over all gateways."""
        self._generate = generate
        self._room = Room(max_open_calls)
        self._ending = asyncio.Event()

    async def Carry(  # type: ignore[override]  # noqa: N802  # a coroutine that writes to the context serves as well
        self, requests: AsyncIterator[wire.CarryRequest], context: aio.ServicerContext[Any, Any]
    ) -> None:
        """Carry calls until the gateway leaves, or the worker ends."""
        await context.send_initial_metadata(((METADATA_RELAY, "1"),))  # the gateway waits for it
        carrier = Carrier(self._generate, self._room, context.peer())
        try:
            await carrier.carry(requests, context.write, self._ending)
        except BegunTwice as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    def close(self) -> None:
        """End every stream as soon as its calls have ended."""
        self._ending.set()


class BegunTwice(Exception):
    """A gateway gave one number to two calls."""


class Carrier:
    """The calls of one stream."""

    def __init__(self, generate: Generate, room: Room, peer: str) -> None:
        self._generate = generate
        self._room = room
        self._peer = peer if is_in_pod(peer) else "relay"  # a gateway's callers are known by what it calls them
        self._outbox = RelayWriter()
        self._calls: dict[int, _Call] = {}

    def __repr__(self) -> str:
        return f"Carrier({len(self._calls)} calls)"

    async def carry(self, requests: AsyncIterator[wire.CarryRequest], write: Write, ending: asyncio.Event) -> None:
        """Serve until the gateway leaves, or until `ending` and the end of all calls. Raises BegunTwice."""
        reading = asyncio.create_task(self._read(requests))
        tasks = [reading, asyncio.create_task(self._outbox.write_to(write)), asyncio.create_task(ending.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if ending.is_set():
                await asyncio.gather(*self._tasks(), return_exceptions=True)
                await self._outbox.until_empty()
            elif reading.done():
                reading.result()
        finally:
            for task in [*tasks, *self._tasks()]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[wire.CarryRequest]) -> None:
        async for request in requests:
            self._take(request)

    def _take(self, request: wire.CarryRequest) -> None:
        """Act on a message. Calls that have ended meanwhile may still be named. Raises BegunTwice."""
        for begun in request.begin:
            self._begin(begun)
        for call in self._known(request.pause):
            call.is_let.clear()
        for call in self._known(request.resume):
            call.is_let.set()
        for call in self._known(request.cancel):
            if call.task:
                call.task.cancel()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [call.task for call in self._calls.values() if call.task]

    def _known(self, numbers: Iterable[int]) -> list[_Call]:
        return [self._calls[number] for number in numbers if number in self._calls]

    def _begin(self, begun: wire.CarriedCall) -> None:
        if begun.call in self._calls:
            raise BegunTwice(f"call {begun.call} was begun twice")
        if self._room.is_full:
            words = f"{self._room.limit} calls are open, as many as this worker takes (--max-open-calls)"
            self._outbox.end(
                begun.call, wire.CarriedStatus(code=_number(grpc.StatusCode.RESOURCE_EXHAUSTED), message=words)
            )
            return
        call = self._calls[begun.call] = _Call(begun.call)
        self._room.num_open += 1
        call.task = asyncio.create_task(self._serve(call, begun))
        call.task.add_done_callback(lambda _: self._forget(call))  # a task that never ran has no `finally`

    def _forget(self, call: _Call) -> None:
        del self._calls[call.number]
        self._room.num_open -= 1

    async def _serve(self, call: _Call, begun: wire.CarriedCall) -> None:
        """Run a call to its end, and tell its status unless it was cancelled."""
        self._outbox.end(call.number, await self._answer(call, begun))

    async def _answer(self, call: _Call, begun: wire.CarriedCall) -> wire.CarriedStatus:
        timeout_s = max(0.0, min(begun.timeout_s, LONGEST_S))
        context = CarriedContext(begun.metadata, asyncio.get_running_loop().time() + timeout_s, self._peer)
        try:
            responses: Any = self._generate(_READ(begun.request), context)
            async with asyncio.timeout(timeout_s), aclosing(responses):
                async for response in responses:
                    await call.is_let.wait()
                    await self._outbox.put(call.number, response.SerializeToString(), is_first=not call.has_answered)
                    call.has_answered = True
        except Aborted as aborted:
            return aborted.status
        except TimeoutError:
            return wire.CarriedStatus(code=_number(grpc.StatusCode.DEADLINE_EXCEEDED), message="Deadline Exceeded")
        except Exception as surprise:  # noqa: BLE001  one call must not end the others
            return _to_wire(to_grpc_status(unexpected(surprise)))
        return wire.CarriedStatus()


@dataclass(slots=True)
class _Call:
    """One call that runs."""

    number: int
    is_let: asyncio.Event = field(default_factory=set_event)  # not paused
    has_answered: bool = False
    task: asyncio.Task[None] | None = None


class Aborted(Exception):
    """A servicer ended a carried call."""

    def __init__(self, status: wire.CarriedStatus) -> None:
        super().__init__(status.message)
        self.status = status


class CarriedContext:
    """What a servicer is given for a carried call in place of gRPC's context: as much of it as is used."""

    def __init__(self, metadata: Iterable[wire.CarriedMetadata], deadline_s: float, peer: str) -> None:
        """Take the call's metadata, when it ends by the loop's clock, and who sent it."""
        self._metadata = tuple((pair.key, _value(pair)) for pair in metadata)
        self._deadline_s = deadline_s
        self._peer = peer

    def __repr__(self) -> str:
        return f"CarriedContext({self.time_remaining():.1f} s left)"

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return what the caller sent."""
        return self._metadata

    def peer(self) -> str:
        """Return who sent it."""
        return self._peer

    def time_remaining(self) -> float:
        """Return the seconds until the deadline."""
        return max(0.0, self._deadline_s - asyncio.get_running_loop().time())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Take what gRPC would call when the caller leaves: here the servicer itself is cancelled, which does it."""

    async def abort_with_status(self, status: Any) -> NoReturn:
        """End the call with a `grpc.Status`. Raises Aborted."""
        raise Aborted(_to_wire(status))


def _to_wire(status: Any) -> wire.CarriedStatus:
    details = next((value for key, value in status.trailing_metadata or () if key == STATUS_DETAILS), b"")
    return wire.CarriedStatus(code=_number(status.code), message=status.details, details=details)


def _number(code: grpc.StatusCode) -> int:
    number: int = code.value[0]
    return number


def _value(pair: wire.CarriedMetadata) -> str | bytes:
    return pair.value if pair.key.endswith("-bin") else pair.value.decode("latin-1")
