"""What may go wrong on the way to a worker. The one place where gRPC's client errors are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from dormouse_api.status import STATUS_DETAILS, CallError, to_grpc_status
from dormouse_gateway.model import Endpoint
from dormouse_gateway.routing.breaker import Verdict

_RETRY_AFTER_S = 1.0
# What a connection that breaks in the middle looks like: never said by a worker on purpose, as that comes with details.
_BREAKS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED}
# What a worker says that failed; every other status is about the request, its time, or the worker's queue.
_FAULTS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}

Trailers = tuple[tuple[str, str | bytes], ...]


@dataclass(eq=False)
class WorkerFailure(Exception):
    """A worker ended a call with an error, or its connection did."""

    endpoint: Endpoint
    code: grpc.StatusCode
    message: str
    trailers: Trailers
    messages: int  # that the client had got of it by then
    then: str = ""  # why the call could not go on elsewhere
    is_stop: bool = False  # it ended what it had on purpose, or we did

    @property
    def is_break(self) -> bool:
        """Return whether the worker or its connection gave up, whatever the request was."""
        return self.code is grpc.StatusCode.UNAVAILABLE or (self.code in _BREAKS and not self.trailers)

    @property
    def may_go_elsewhere(self) -> bool:
        """Return whether another worker may be asked: the client has got nothing, and this one cannot or will not.

        A worker's own NOT_FOUND means that our picture is out of date: another pod has its address by now.
        """
        return not self.messages and (self.is_break or self.code is grpc.StatusCode.NOT_FOUND)

    @property
    def may_go_on_elsewhere(self) -> bool:
        """Return whether one more worker may be asked for the rest of a stream, after this one was."""
        is_full = not self.messages and self.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        return self.is_break or self.may_go_elsewhere or is_full

    def __str__(self) -> str:
        """Name the pod and what it said."""
        pod = self.endpoint.pod
        return f"worker {pod.namespace}/{pod.name}: {self.code.name}: {self.message}"


class WorkerStopped(Exception):
    """A worker ended a choice because it had to stop, not because the answer was complete."""


def stopped(endpoint: Endpoint, *, why: str, messages: int) -> WorkerFailure:
    """Return the failure of a worker that cannot go on with a call, or shall not."""
    return WorkerFailure(endpoint, grpc.StatusCode.UNAVAILABLE, why, (), messages, is_stop=True)


def read_failure(error: aio.AioRpcError, *, endpoint: Endpoint, messages: int) -> WorkerFailure:
    """Read the client library's error."""
    given: Any = error.trailing_metadata() or ()  # pairs, which the stubs do not know
    trailers: Trailers = tuple((key, value) for key, value in given if key == STATUS_DETAILS)  # of all said on purpose
    return WorkerFailure(endpoint, error.code(), error.details() or "", trailers, messages)


def verdict_on(failure: WorkerFailure | None, *, adapter: str = "") -> Verdict:
    """Return what a call's end says about its worker; None = it was answered.

    Where a worker refuses a call for an adapter on purpose, it may be the adapter that is missing: others are served.
    """
    if failure is None:
        return Verdict.GOOD
    if adapter and failure.trailers and failure.may_go_elsewhere:
        return Verdict.NOTHING
    if failure.may_go_elsewhere:
        return Verdict.REFUSED
    if failure.is_stop:
        return Verdict.NOTHING
    return Verdict.FAILED if failure.is_break or failure.code in _FAULTS else Verdict.NOTHING


def status_of(failure: WorkerFailure) -> grpc.Status:
    """Return what the client sees: a worker's own words pass through, a broken connection is told in ours."""
    is_ours = failure.is_break or failure.code is grpc.StatusCode.NOT_FOUND
    is_said_by_worker = failure.code is not grpc.StatusCode.NOT_FOUND and bool(failure.trailers)
    if not failure.then and (is_said_by_worker or not is_ours):
        return PassedOn(failure.code, failure.message, failure.trailers)
    when = f"after {failure.messages} messages" if failure.messages else "before its first message"
    pod = failure.endpoint.pod
    words = f"worker {pod.namespace}/{pod.name} failed {when}: {failure.message}"
    words += f"; {failure.then}" if failure.then else ""
    return to_grpc_status(CallError(grpc.StatusCode.UNAVAILABLE, words, _RETRY_AFTER_S))


@dataclass(frozen=True, slots=True)
class PassedOn(grpc.Status):
    """A status as it came, to be given to `abort_with_status`."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: Trailers
