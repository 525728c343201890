"""The requests in flight: routes the engine's outputs to their streams and tells the engine what to drop."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

import grpc

from dormouse_api.status import CallError
from dormouse_worker.front.board import Changes
from dormouse_worker.front.streams import OutputStream
from dormouse_worker.ipc import AbortRequests, AddRequest, FrontMessage, Sampling, StepOutputs

RETRY_FULL_S = 1.0
RETRY_LOST_S = 5.0


class RequestEvents(Protocol):
    """Who counts requests."""

    def on_tokens(self, stream: OutputStream, num_tokens: int, previous_token_s: float | None) -> None:
        """The engine produced tokens; the time of the tokens before, None for the first."""

    def on_end(self, stream: OutputStream, reason: str) -> None:
        """A request ended: stop, length, abort (also: the caller left) or error."""


class RequestTable:
    """Owns every request between acceptance and its end. Each leaves it exactly once."""

    def __init__(
        self,
        send: Callable[[FrontMessage], None],
        events: RequestEvents,
        *,
        max_waiting: int,
        changes: Changes,
    ) -> None:
        self._send = send
        self._events = events
        self._max_waiting = max_waiting
        self._changes = changes
        self._streams: dict[str, OutputStream] = {}
        self._ids = itertools.count(1)
        self.num_accepted = 0

    def __repr__(self) -> str:
        return f"RequestTable({len(self)} in flight, {self.num_waiting} waiting, {self.num_accepted} accepted)"

    def __len__(self) -> int:
        """Return how many requests are in flight."""
        return len(self._streams)

    @property
    def num_waiting(self) -> int:
        """Return how many requests have not got a token yet."""
        return sum(not stream.is_started for stream in self._streams.values())

    @property
    def num_running(self) -> int:
        """Return how many requests have got a token."""
        return len(self) - self.num_waiting

    def check_room(self) -> None:
        """Raise CallError RESOURCE_EXHAUSTED when the queue is full."""
        waiting = self.num_waiting
        if waiting >= self._max_waiting:
            raise CallError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{waiting} requests wait already; the limit is {self._max_waiting} (--max-waiting-requests)",
                RETRY_FULL_S,
            )

    def open(self, stream: OutputStream, prompt_token_ids: list[int], sampling: Sampling, *, priority: int = 0) -> str:
        """Hand a request to the engine; return the id under which it runs."""
        key = str(next(self._ids))
        self._streams[key] = stream
        self.num_accepted += 1
        self._send(AddRequest(key, prompt_token_ids, sampling, priority=priority))
        self._changes.notify()
        return key

    def abandon(self, key: str) -> None:
        """The caller left: free the sequence at once. Nothing happens if the request has ended."""
        if key in self._streams:
            self._send(AbortRequests([key]))
            self._remove(key, "abort")

    def route(self, step: StepOutputs) -> None:
        """Deliver one step's outputs; what nobody waits for any more is dropped."""
        for output in step.outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue
            previous_s, before = stream.times.last_token_s, stream.num_tokens
            stream.push(output)
            if stream.num_tokens > before:
                self._events.on_tokens(stream, stream.num_tokens - before, previous_s)
            if stream.finish_reason is not None:
                if output.finish_reason is None:  # the front found a stop string, the engine does not know it
                    self._send(AbortRequests([output.request_id]))
                self._remove(output.request_id, stream.finish_reason)
        for key, why in step.failed.items():
            self._fail(key, CallError(grpc.StatusCode.INTERNAL, f"{why} (worker request {key})"))
        self._changes.notify()

    def fail_all(self, message: str) -> None:
        """End every request with UNAVAILABLE, so that it can be continued elsewhere."""
        for key in list(self._streams):
            self._send(AbortRequests([key]))
            self._fail(key, CallError(grpc.StatusCode.UNAVAILABLE, message, RETRY_LOST_S))

    def _fail(self, key: str, error: CallError) -> None:
        if key in self._streams:
            self._streams[key].fail(error)
            self._remove(key, "error")

    def _remove(self, key: str, reason: str) -> None:
        stream = self._streams.pop(key)
        self._events.on_end(stream, reason)
        self._changes.notify()
