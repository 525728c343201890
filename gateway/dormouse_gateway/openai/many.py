"""Several prompts of one body: their calls as one, a bounded number of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.calls import LocalCall

AT_ONCE = 8  # prompts of one body that are with workers, or wait for one


class ManyCalls:
    """Reads all calls in whatever order their messages come. Choice c of call p is told as p * num_choices + c.

    Use as a context manager: leaving it cancels what still runs. The first call that fails ends all.
    """

    def __init__(self, calls: Sequence[LocalCall], num_choices: int) -> None:
        """Take the calls, one for each prompt."""
        self._calls = calls
        self._num_choices = num_choices
        self._room = asyncio.Semaphore(AT_ONCE)
        self._messages: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(maxsize=1)  # None = one call ended
        self._tasks: list[asyncio.Task[None]] = []
        self._num_running = len(calls)

    @property
    def said(self) -> dict[str, str]:
        """Return what the core told besides, of the last call that said it."""
        return {key: value for call in self._calls for key, value in call.said.items()}

    @property
    def progressed(self) -> asyncio.Event:
        """Return the event that the first call has something to tell: it is begun first."""
        return self._calls[0].progressed

    async def __aenter__(self) -> ManyCalls:
        """Start the first ones."""
        self._tasks = [asyncio.create_task(self._pass_on(index)) for index in range(len(self._calls))]
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Cancel them, and wait until the workers are told."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def read(self) -> bytes | None:
        """Return the next message, None after the last. Raises what a call raises."""
        while self._num_running:
            message = await self._messages.get()
            if isinstance(message, Exception):
                raise message
            if message is not None:
                return message
            self._num_running -= 1
        return None

    async def _pass_on(self, index: int) -> None:
        try:
            async with self._room, self._calls[index] as call:
                while (raw := await call.read()) is not None:
                    await self._messages.put(self._renumbered(raw, index))
        except Exception as error:  # noqa: BLE001  # to be raised where it is read
            await self._messages.put(error)
        else:
            await self._messages.put(None)

    def _renumbered(self, raw: bytes, index: int) -> bytes:
        message = pb.GenerateResponse.FromString(raw)
        message.choice_index += index * self._num_choices
        return message.SerializeToString()
