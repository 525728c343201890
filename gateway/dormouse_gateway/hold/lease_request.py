"""A request in line, as the holder knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from dormouse_gateway.hold.line import Held
from dormouse_gateway.hold.wait import HoldTicket
from dormouse_gateway.model import Endpoint, EndpointId
from dormouse_gateway.router import Lease
from dormouse_gateway.routing.policy import Demand


@dataclass(eq=False, slots=True)
class LeaseRequest(Held):
    """Use: wait for `granted`. It gets a lease, which whoever waits takes, or the refusal."""

    wait: HoldTicket
    demand: Demand
    like: Endpoint | None = None  # only one that runs the same will do: it goes on with what that began
    tried: Mapping[EndpointId, int] = field(default_factory=dict)  # not these for a while, unless they began anew
    granted: asyncio.Future[Lease] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
