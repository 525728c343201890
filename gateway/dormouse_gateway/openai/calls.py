"""The seam to the gateway's core: a call of `dormouse.v1.Inference` from within this process.

The core serves it as it serves a call that came over gRPC: routed, held, retried, counted. `LocalCall` is what gRPC's
servicer context is there: it takes messages, metadata and the status, and hands them to whoever reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from types import TracebackType
from typing import Any, NoReturn, Protocol

import grpc

from dormouse_api.status import STATUS_DETAILS, CallError, read_details
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.clients.keys import Caller
from dormouse_gateway.clients.requests import HTTP_PEER, METHODS, Metadata, Method, Request

_BY_REQUEST = {method.request: method for method in METHODS}
_Admit = Callable[[Any], AbstractAsyncContextManager[Caller]]


class Serve(Protocol):
    """The core: serves one request, writes its messages to the context, ends with its status."""

    async def __call__(self, method: Method, raw: bytes, context: Any, admit: _Admit | None = None) -> None:
        """See `InferenceProxy.serve`."""


class LocalCall:
    """One call. Use as a context manager: leaving it cancels what still runs.

    A message waits until the one before is read, so that a slow reader slows the worker and fills no memory.
    """

    def __init__(
        self, serve: Serve, request: Request, metadata: Metadata, admit: _Admit | None = None, *, peer: str = ""
    ) -> None:
        """Take the core, what to ask it, and the address of who asks, host:port."""
        self.said: dict[str, str] = {}  # initial and trailing metadata of the gateway's own
        self.progressed = asyncio.Event()  # the core has something to tell before the first message: it is held
        self._serve = serve
        self._request = request
        self._metadata = metadata
        self._admit = admit
        self._peer = f"{HTTP_PEER}{peer}"
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)  # None = the end
        self._error: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LocalCall:
        """Start it."""
        self._task = asyncio.create_task(self._run(), name="local call")
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Cancel it, and wait until the worker is told."""
        assert self._task
        self._task.cancel()
        await asyncio.wait({self._task})

    async def read(self) -> bytes | None:
        """Return the next message, None after the last. Raises CallError if the call ended with an error."""
        message = await self._messages.get()
        if message is None and self._error:
            raise self._error
        return message

    async def _run(self) -> None:
        method = _BY_REQUEST[type(self._request)]
        try:
            await self._serve(method, self._request.SerializeToString(), self, self._admit)
        except Exception as error:  # noqa: BLE001  # to be raised where it is read
            self._error = error
        await self._messages.put(None)

    # What the core calls: the part of gRPC's servicer context that it uses.

    def invocation_metadata(self) -> Metadata:
        """Return what the client said besides."""
        return self._metadata

    def time_remaining(self) -> float | None:
        """HTTP knows no deadlines: the gateway's default holds."""
        return None

    def peer(self) -> str:
        """Return where the call came from."""
        return self._peer

    async def write(self, message: bytes | pb.GenerateResponse) -> None:
        """Take a message; returns when the one before was read."""
        await self._messages.put(message if isinstance(message, bytes) else message.SerializeToString())

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Take what the core says at once, which means that there is time until the first message."""
        self._take(metadata)
        self.progressed.set()

    def set_trailing_metadata(self, metadata: Any) -> None:
        """Take what the core says at the end."""
        self._take(metadata)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call back when the call ended."""
        assert self._task
        self._task.add_done_callback(lambda _: callback(self))

    async def abort_with_status(self, status: Any) -> NoReturn:
        """End with this status."""
        raise read_status(status)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """End with this code."""
        self._take(trailing_metadata)
        raise CallError(code, details)

    def _take(self, metadata: Any) -> None:
        self.said |= {key: value for key, value in metadata or () if isinstance(value, str)}


async def ask(serve: Serve, request: Request, metadata: Metadata, caller: Caller, *, peer: str = "") -> bytes:
    """Return the one message of an answer of one, within a call that was admitted. Raises CallError."""
    async with LocalCall(serve, request, metadata, lambda _: nullcontext(caller), peer=peer) as call:
        message = await call.read()
        if message is None:
            raise CallError(grpc.StatusCode.INTERNAL, "a worker ended without an answer")
        await call.read()  # the end: a call that is left before is counted as cancelled
    return message


def read_status(status: Any) -> CallError:
    """Return the error that a status says, with its details."""
    for key, value in status.trailing_metadata or ():
        if key == STATUS_DETAILS:
            return read_details(status.code, status.details, value)
    return CallError(status.code, status.details)
