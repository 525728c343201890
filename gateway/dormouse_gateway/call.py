"""A request on its way: what is sent, to whichever worker, and what it tells of itself to who traces it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import grpc

from dormouse_gateway.clients.requests import Metadata, Method, Request
from dormouse_gateway.errors import WorkerFailure
from dormouse_gateway.hold.wait import HoldTicket
from dormouse_gateway.model import Deployment, Endpoint, EndpointId
from dormouse_gateway.routing.policy import NOTHING, Demand
from dormouse_kube.reflector import ObjectKey

Write = Callable[[bytes], Awaitable[None]]


class RequestTrace(Protocol):
    """What one request tells of itself. Knows nothing of OpenTelemetry; nothing is told per token."""

    def routed(self, call: Call, request: Request) -> Call:
        """It is to be sent; return the call with the trace context that its worker shall continue."""
        ...

    def writing(self, write: Write) -> Write:
        """Return what messages are to be written to."""
        ...

    def sent(self, endpoint: Endpoint, *, was_held: bool) -> None:
        """A worker was found, and gets it now, or a part of it; for that it had to wait or not."""
        ...

    def end(self, code: grpc.StatusCode, why: str) -> None:
        """It ended, however it did; called once."""
        ...


class Traces(Protocol):
    """All requests."""

    def begin(self, method: Method, context: Any) -> RequestTrace:
        """A request arrived; `context` is gRPC's, or what stands for it."""
        ...

    def on_unwanted(self, is_awake: Callable[[ObjectKey], bool]) -> Callable[[ObjectKey], None]:
        """Return who is to be told that nobody waits for a deployment's wake (any more)."""
        ...


class Untraced:
    """Both of them, where tracing is off."""

    def begin(self, method: Method, context: Any) -> RequestTrace:
        """See `Traces`."""
        del method, context
        return self

    def on_unwanted(self, is_awake: Callable[[ObjectKey], bool]) -> Callable[[ObjectKey], None]:
        """See `Traces`."""
        del is_awake
        return lambda _: None

    def routed(self, call: Call, request: Request) -> Call:
        """See `RequestTrace`."""
        del request
        return call

    def writing(self, write: Write) -> Write:
        """See `RequestTrace`."""
        return write

    def sent(self, endpoint: Endpoint, *, was_held: bool) -> None:
        """See `RequestTrace`."""

    def end(self, code: grpc.StatusCode, why: str) -> None:
        """See `RequestTrace`."""


UNTRACED = Untraced()


@dataclass(frozen=True, slots=True)
class Call:
    """A request that is ready to be sent, the same to whichever worker."""

    method: Method
    deployment: Deployment
    body: bytes
    metadata: Metadata
    deadline: float  # by the proxy's clock
    wait: HoldTicket  # for a worker
    demand: Demand = NOTHING
    trace: RequestTrace = UNTRACED
    adapter: str = ""  # the LoRA adapter that shall answer; "" = the base model


@dataclass(frozen=True, slots=True)
class Constraints:
    """Which workers will do."""

    tried: Mapping[EndpointId, int] = field(default_factory=dict)  # not these, unless they began anew: see `openings`
    like: Endpoint | None = None  # only those that run the same
    may_leave: Callable[[], bool] = lambda: False  # whether the call could go on elsewhere once it is at a worker

    def after(self, failure: WorkerFailure) -> Constraints:
        """Return the same without the worker that failed. What failed before it may do again if it got on."""
        tried, endpoint = {} if failure.messages else self.tried, failure.endpoint
        return replace(self, tried={**tried, endpoint.id: endpoint.openings})


# Sends a call to the best worker that will do; returns how that one failed, None after success. Raises CallError if
# there is none.
Attempt = Callable[[Call, Write, Constraints], Awaitable[WorkerFailure | None]]
