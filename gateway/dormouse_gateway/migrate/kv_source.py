"""Tells the worker that goes on with a stream where blocks of its KV cache may be, and lets it ask there."""

from __future__ import annotations

from collections.abc import Callable

from dormouse_api.tickets import TicketBook
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.model import Endpoint

SourceOf = Callable[[Endpoint], pb.KvSource | None]


def kv_sources(tickets: TicketBook) -> SourceOf:
    """Return what says where the blocks of a worker's streams are; None where no ticket could be shown there.

    `tickets` are of the role worker: who holds one may ask that worker for blocks, and for nothing else.
    """

    def source_of(endpoint: Endpoint) -> pb.KvSource | None:
        shown = [ticket for _, ticket in tickets.proof(endpoint.id.pod_uid)]
        return pb.KvSource(address=endpoint.id.address, tickets=shown) if shown else None

    return source_of
