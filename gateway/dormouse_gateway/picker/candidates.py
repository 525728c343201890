"""Which workers a request that goes past this gateway may be sent to. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dormouse_gateway.model import Endpoint, EndpointId


def left_out(endpoints: Sequence[Endpoint], subset: frozenset[str] | None) -> Mapping[EndpointId, int]:
    """Return those that shall not be chosen while another can, with their openings.

    They serve no HTTP, or none that `subset` allows. Where others of its kind are in their Service, a pod that is not
    is left out as well, whatever its worker says: it may be on its way out, and other gateways know it no more.
    """
    able = [each for each in endpoints if each.serves_http(subset)]
    served = {each.id for each in able if each.ready} or {each.id for each in able}
    return {each.id: each.openings for each in endpoints if each.id not in served}
