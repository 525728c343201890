"""A call for vectors or a window of sound, from the engine's message to who waits. Knows neither gRPC nor sockets."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

import grpc

from dormouse_api.status import CallError
from dormouse_worker.common.task_messages import PooledOutput, WindowOutput
from dormouse_worker.front.requests.streams import Times

RETRY_S = 1.0

Output = TypeVar("Output", PooledOutput, WindowOutput)


class PooledAnswer(Generic[Output]):
    """Owns what is answered whole until who waits took it.

    Ends in one output or one error. Needs a running loop.
    """

    def __init__(self, times: Times) -> None:
        self.times = times
        self.is_started = False  # the engine has said something of it
        self._output: asyncio.Future[Output] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"PooledAnswer(ended={self._output.done()})"

    @property
    def is_finished(self) -> bool:
        """Return whether it has ended."""
        return self._output.done()

    def take(self, output: Output) -> None:
        """End with what the engine said."""
        self.is_started = True
        self.times.queue_s, self.times.prefill_s = output.queue_seconds, output.prefill_seconds
        if output.finish_reason == "stop":
            self._end_with(output)
        else:
            self.fail(CallError(grpc.StatusCode.UNAVAILABLE, "the worker gave the call up; ask another", RETRY_S))

    def fail(self, error: CallError) -> None:
        """End with an error; nothing happens if it has ended."""
        if not self._output.done():
            self._output.set_exception(error)
            self._output.exception()  # it is no error if nobody waits any more

    async def wait(self) -> Output:
        """Return what the engine made. Raises CallError if the call ended otherwise."""
        return await self._output

    def _end_with(self, output: Output) -> None:
        if not self._output.done():
            self._output.set_result(output)
