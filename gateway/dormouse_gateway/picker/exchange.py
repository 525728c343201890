"""One request's conversation with Envoy: reads it within limits of size and time, and notices when Envoy goes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from grpc import aio

from dormouse_api.foreign import ext_proc_pb2 as pb
from dormouse_gateway.openai.bodies import MAX_BODY_BYTES, ClientGone
from dormouse_gateway.openai.errors import ApiError, too_large
from dormouse_gateway.picker import answers
from dormouse_gateway.picker.head import Head

Context = Any  # aio.ServicerContext

_END: Any = aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
T = TypeVar("T")


class Exchange:
    """Reads and writes messages. Owns what was read ahead."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ahead: asyncio.Task[Any] | None = None

    async def read(self) -> pb.ProcessingRequest | None:
        """Return the next message, None after the last."""
        reading, self._ahead = self._ahead, None
        message = await (reading or self._context.read())
        return None if message is _END else message

    async def say(self, response: pb.ProcessingResponse) -> None:
        """Write a message."""
        await self._context.write(response)

    async def body(self, head: Head, timeout_s: float) -> bytes:
        """Return the request's body. Raises ApiError for one that is too large or too slow; ClientGone."""
        if not head.has_body:
            return b""
        if not head.is_duplex:
            await self.say(answers.proceed())
        try:
            async with asyncio.timeout(timeout_s):
                return await self._gathered()
        except TimeoutError as error:
            raise ApiError(408, f"the body did not come within {timeout_s:g} seconds", code="timeout") from error

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work; stop as soon as Envoy has nothing more to say, which before an answer means: it is gone.

        Raises ClientGone. When this returns or raises, the work has ended.
        """
        task = asyncio.create_task(work)
        self._ahead = self._ahead or asyncio.create_task(self._context.read())
        try:
            await asyncio.wait({task, self._ahead}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and self._ahead.result() is _END:
                raise ClientGone
            return await task
        finally:
            task.cancel()
            await asyncio.wait({task})

    def close(self) -> None:
        """Read nothing more."""
        if self._ahead:
            self._ahead.cancel()

    async def _gathered(self) -> bytes:
        body, is_over = bytearray(), False
        while not is_over:
            message = await self.read()
            if message is None:
                raise ClientGone
            kind = message.WhichOneof("request")
            if kind != "request_body":
                raise ApiError(400, f"Envoy sent {kind} where the body belongs; trailers of requests are not taken")
            body += message.request_body.body
            is_over = message.request_body.end_of_stream
            if len(body) > MAX_BODY_BYTES:
                raise too_large(f"the body has {len(body)} bytes or more", MAX_BODY_BYTES)
        return bytes(body)
