"""What the engine says of one Decide call's sequences, to who waits for all of them. Knows neither gRPC nor sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc

from dormouse_api.status import CallError
from dormouse_worker.common.ipc import TokenOutput
from dormouse_worker.front.requests.streams import Times

RETRY_S = 1.0


class Read:
    """Owns what one sequence was told: the likeliest token, and how likely the named ones are."""

    def __init__(self, times: Times, on_end: Callable[[CallError | None], None]) -> None:
        self.times = times
        self.is_started = self.is_finished = False
        self.token_id = -1
        self.logprobs: Sequence[float] = ()
        self.cached_tokens = 0
        self._on_end = on_end

    def __repr__(self) -> str:
        return f"Read(token={self.token_id}, ended={self.is_finished})"

    def take(self, output: TokenOutput) -> None:
        """End with what the engine said."""
        self.is_started = True
        self.times.queue_s, self.times.prefill_s = output.queue_seconds, output.prefill_seconds
        self.cached_tokens = output.cached_tokens
        if output.token_ids and output.logprobs:
            self.token_id, self.logprobs = output.token_ids[0], output.logprobs[0].named
            self._end(None)
        else:
            self._end(CallError(grpc.StatusCode.UNAVAILABLE, "the worker gave the call up; ask another", RETRY_S))

    def fail(self, error: CallError) -> None:
        """End with an error; nothing happens if it has ended."""
        if not self.is_finished:
            self._end(error)

    def _end(self, error: CallError | None) -> None:
        self.is_finished = True
        self._on_end(error)


class Reads:
    """Owns all of a call's sequences. Ends when the last one has, or with the first error. Needs a running loop."""

    def __init__(self, count: int, arrival_s: float) -> None:
        self._num_open = count
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.each = [Read(Times(arrival_s), self._count) for _ in range(count)]

    def __repr__(self) -> str:
        return f"Reads({self._num_open} of {len(self.each)} open)"

    async def wait(self) -> None:
        """Wait until all are there. Raises CallError if the call ended otherwise."""
        await self._ended

    def _count(self, error: CallError | None) -> None:
        self._num_open -= 1
        if self._ended.done():
            return
        if error is not None:
            self._ended.set_exception(error)
            self._ended.exception()  # it is no error if nobody waits any more
        elif self._num_open == 0:
            self._ended.set_result(None)
