"""The seam between the proxy and tracing: what a request tells of itself on its way. Knows nothing of OpenTelemetry.

Nothing is told per token: `Untraced` costs a few empty calls a request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import grpc

if TYPE_CHECKING:
    from dormouse_gateway.call import Call, Write
    from dormouse_gateway.clients.requests import Method, Request
    from dormouse_gateway.model import Endpoint
    from dormouse_kube.reflector import ObjectKey


class RequestTrace(Protocol):
    """One request."""

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
