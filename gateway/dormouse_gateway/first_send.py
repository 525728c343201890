"""What a gRPC call sends first runs to its end, though its request is cancelled in the middle.

gRPC takes a call's initial metadata once, and learns only at the end of the send that they are gone. A status given
before that brings them again: gRPC refuses it, and the client hears nothing until its deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class FirstSend:
    """Sends to one client. Ask `settled` before the call is ended with a status."""

    def __init__(self, context: Any) -> None:
        """Take the call's context, whose `write` and `send_initial_metadata` are meant."""
        self._context = context
        self._sending: asyncio.Task[None] | None = None
        self._is_sent = False

    async def send_initial_metadata(self, metadata: Any) -> None:
        """See `aio.ServicerContext`. Raises UsageError if they are sent."""
        await self._send_first(self._context.send_initial_metadata(metadata))

    async def write(self, message: Any) -> None:
        """See `aio.ServicerContext`: the first message brings the initial metadata if nothing did before."""
        if self._is_sent:
            await self._context.write(message)
        else:
            await self._send_first(self._context.write(message))

    async def settled(self) -> None:
        """Wait until nothing is being sent that brings initial metadata."""
        if self._sending:
            await asyncio.wait((self._sending,))

    async def _send_first(self, sending: Coroutine[Any, Any, None]) -> None:
        self._sending = asyncio.create_task(sending)
        self._sending.add_done_callback(lambda done: done.cancelled() or done.exception())  # who waits is told
        await asyncio.shield(self._sending)
        self._is_sent = True
