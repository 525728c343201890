"""A request on its way: what is sent, to whichever worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from dormouse_gateway.clients.requests import Metadata, Method
from dormouse_gateway.errors import WorkerFailure
from dormouse_gateway.hold.wait import HoldTicket
from dormouse_gateway.model import Deployment, Endpoint, EndpointId
from dormouse_gateway.routing.policy import NOTHING, Demand
from dormouse_gateway.telemetry.tracing import UNTRACED, RequestTrace

Write = Callable[[bytes], Awaitable[None]]


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
