"""A collector of spans that stands in: OTLP's own gRPC service, over a real port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as rpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True, slots=True)
class Told:
    """A span as it came, and who sent it."""

    service: str
    span: Span

    @property
    def name(self) -> str:
        """Return the span's name."""
        return str(self.span.name)


@dataclass(slots=True)
class Collector(rpc.TraceServiceServicer):
    """Keeps what it is told, or refuses it all."""

    refuses: bool = False
    told: list[Told] = field(default_factory=list)
    num_calls: int = 0
    url: str = ""

    async def Export(self, request: pb.ExportTraceServiceRequest, context: Any) -> pb.ExportTraceServiceResponse:  # noqa: N802
        """See OTLP."""
        self.num_calls += 1
        if self.refuses:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no more")
        for resource in request.resource_spans:
            attributes = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            spans = [span for scope in resource.scope_spans for span in scope.spans]
            self.told += [Told(attributes["service.name"], span) for span in spans]
        return pb.ExportTraceServiceResponse()

    def named(self, name: str) -> list[Told]:
        """Return the spans of this name."""
        return [told for told in self.told if told.name == name]


@asynccontextmanager
async def collecting(*, refuses: bool = False) -> AsyncIterator[Collector]:
    """Yield a collector that listens."""
    collector, server = Collector(refuses=refuses), aio.server()
    rpc.add_TraceServiceServicer_to_server(collector, server)
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(None)
