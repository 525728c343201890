"""The clients' part of a trace: a span for each request for text, and its context in the call's metadata.

Imports nothing of OpenTelemetry: who has not imported it has no trace to continue. Then a call costs one look at
`sys.modules`. With it, spans go where the program sends its own (the global tracer provider), or to the given tracer.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from dormouse_api.client.errors import ClientError
from dormouse_api.v1 import inference_pb2 as pb

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

Metadata = tuple[tuple[str, str], ...]


class CallTrace(Protocol):
    """One request in its trace. Used with `with`, which ends it with what the body raised."""

    last: pb.GenerateResponse | None  # message that came: the very last one has the counts

    @property
    def metadata(self) -> Metadata:
        """Return what the call carries of the trace."""
        ...

    def __enter__(self) -> CallTrace:
        """Return itself."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """End it."""
        ...


class Untraced:
    """Does nothing."""

    def __init__(self) -> None:
        """Begin without a message."""
        self.last: pb.GenerateResponse | None = None
        self.metadata: Metadata = ()

    def __enter__(self) -> CallTrace:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing ends."""


def begin(request: pb.GenerateRequest, tracer: Tracer | None) -> CallTrace:
    """Return the request's place in the current trace, or in a new one; without OpenTelemetry nothing."""
    if not _is_used(tracer):
        return Untraced()
    from opentelemetry import trace

    operation = "chat" if request.HasField("chat") else "text_completion"
    attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "dormouse",
        "gen_ai.request.model": request.model,
    }
    making = tracer or trace.get_tracer("dormouse.client")
    return _Traced(making.start_span(f"{operation} {request.model}", kind=trace.SpanKind.CLIENT, attributes=attributes))


def current(tracer: Tracer | None) -> Metadata:
    """Return the current trace's context as metadata, for calls without a span of their own."""
    return _injected(None) if _is_used(tracer) else ()


class _Traced:
    """A request's span."""

    def __init__(self, span: Span) -> None:
        """Take the span, which this ends."""
        from opentelemetry.trace import set_span_in_context

        self._span = span
        self.last: pb.GenerateResponse | None = None
        self.metadata = _injected(set_span_in_context(span))

    def __enter__(self) -> CallTrace:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """End the span. A caller that stops reading is no error; what the call raised is."""
        del kind, where
        if isinstance(error, ClientError):
            self._failed(error)
        elif error is None:
            self._span.set_attribute("rpc.response.status_code", "OK")
        if self.last is not None:
            self._count(self.last)
        self._span.end()

    def _failed(self, error: ClientError) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute("rpc.response.status_code", error.code.name)
        self._span.set_attribute("error.type", error.code.name)
        self._span.set_status(Status(StatusCode.ERROR, str(error)))

    def _count(self, last: pb.GenerateResponse) -> None:
        if last.HasField("usage"):
            self._span.set_attribute("gen_ai.usage.input_tokens", last.usage.prompt_tokens)
            self._span.set_attribute("gen_ai.usage.output_tokens", last.usage.completion_tokens)


def _is_used(tracer: Tracer | None) -> bool:
    return tracer is not None or "opentelemetry.trace" in sys.modules


def _injected(context: Context | None) -> Metadata:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    sent: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(sent, context)
    return tuple(sent.items())
