"""The gateway's spans: one for each request for text, in it `hold`; and one `wake`, to which all holds of it link.

Imported only where tracing is on. Spans end into a queue (`dormouse_api.tracing`): nothing here waits.

    client ── chat default/tiny ──┬── hold ───────────▶ link
                                  ├── wake  (of the first request that was held for it)
                                  └── generate …        (the worker's, docs/operations/tracing.md)
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dormouse_api.tracing import carrier
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.call import UNTRACED, Call, RequestTrace, Write
from dormouse_gateway.clients.requests import HTTP_PEER, Method, Request
from dormouse_gateway.hold.wait import OnHeld, Start
from dormouse_gateway.model import Endpoint
from dormouse_kube.reflector import ObjectKey

_W3C = TraceContextTextMapPropagator()
_TEXT_METHOD = "Generate"  # the others take microseconds: their context passes through
# Of a server's span only these are errors by OpenTelemetry's conventions; the others are the client's doing.
_SERVER_ERRORS = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # beyond the conventions: here it means that our lines were full
}
_PARAMETERS = {"max_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "n": "choice.count"}

Clock = Callable[[], int]  # nanoseconds since 1970


class OtelTraces:
    """Makes the spans. Owns those of wakes under way: one for each deployment."""

    def __init__(self, tracer: Tracer, *, now_ns: Clock = time.time_ns) -> None:
        """Take what makes spans, and the wall clock."""
        self._tracer = tracer
        self._now_ns = now_ns
        self._wakes: dict[ObjectKey, Span] = {}

    def __repr__(self) -> str:
        """Show which wakes are under way."""
        return f"OtelTraces(wakes={[f'{key.namespace}/{key.name}' for key in self._wakes]})"

    def begin(self, method: Method, context: Any) -> RequestTrace:
        """See `Traces`."""
        if method.name != _TEXT_METHOD:
            return UNTRACED
        parent = _W3C.extract(carrier(context.invocation_metadata()))
        kind = "http" if context.peer().startswith(HTTP_PEER) else "grpc"
        door = {"dormouse.door": kind, "gen_ai.provider.name": "dormouse"}
        span = self._tracer.start_span("generate", context=parent, kind=SpanKind.SERVER, attributes=door)
        return _Request(span, self._tracer, self._now_ns, self._wake)

    def on_unwanted(self, is_awake: Callable[[ObjectKey], bool]) -> Callable[[ObjectKey], None]:
        """See `Traces`."""
        return partial(self._end_wake, is_awake)

    def _wake(self, call: Call, cause: Span) -> SpanContext:
        """Return the wake that this call waits for; the first one that is recorded begins it."""
        key = call.deployment.key
        if key not in self._wakes:
            attributes = {"dormouse.deployment": call.deployment.full_name, "dormouse.start": call.wait.start.value}
            self._wakes[key] = self._tracer.start_span("wake", set_span_in_context(cause), attributes=attributes)
        return self._wakes[key].get_span_context()

    def _end_wake(self, is_awake: Callable[[ObjectKey], bool], key: ObjectKey) -> None:
        wake = self._wakes.pop(key, None)
        if wake:
            is_done = is_awake(key)
            wake.set_attribute("dormouse.wake.awake", is_done)
            wake.set_status(
                Status(StatusCode.OK) if is_done else Status(StatusCode.ERROR, "nobody waits for it any more")
            )
            wake.end()


@dataclass(slots=True)
class _Hold:
    """A request waits for a worker, or for several: choices that go on elsewhere wait side by side."""

    since_ns: int  # when the first began to wait
    wake: SpanContext | None  # None: it waits for its turn
    num_parts: int = 0  # that still wait


@dataclass(slots=True)
class _Request:
    """One request's span."""

    span: Span
    tracer: Tracer
    now_ns: Clock
    wake: Callable[[Call, Span], SpanContext]
    hold: _Hold | None = None
    last: bytes = b""  # message that the client got: the very last one has the counts
    attempts: list[bool] = field(default_factory=list)  # whether something was said before each

    def routed(self, call: Call, request: Request) -> Call:
        """See `RequestTrace`."""
        sent: dict[str, str] = {}
        _W3C.inject(sent, set_span_in_context(self.span))
        kept = tuple(pair for pair in call.metadata if pair[0] not in {"traceparent", "tracestate"})
        call = replace(call, metadata=(*kept, *sent.items()), trace=self)
        if self.span.is_recording():
            call.wait.on_held = partial(self._held, call, call.wait.on_held)
            _describe(self.span, call, request)
        return call

    def writing(self, write: Write) -> Write:
        """See `RequestTrace`."""
        if not self.span.is_recording():
            return write

        def note(raw: bytes) -> Awaitable[None]:
            if not self.last:
                self.span.add_event("first message")
            self.last = raw
            return write(raw)

        return note

    def sent(self, endpoint: Endpoint, *, was_held: bool) -> None:
        """See `RequestTrace`."""
        if self.span.is_recording():
            if self.hold and was_held:
                self.hold.num_parts -= 1
                if not self.hold.num_parts:
                    self._end_hold(Status())
            self.attempts.append(bool(self.last))
            pod = f"{endpoint.pod.namespace}/{endpoint.pod.name}"
            self.span.add_event("sent", {"dormouse.worker": pod, "server.address": endpoint.id.address})

    def end(self, code: grpc.StatusCode, why: str) -> None:
        """See `RequestTrace`."""
        if not self.span.is_recording():
            return
        status = Status(StatusCode.ERROR, why) if code in _SERVER_ERRORS else Status()
        self._end_hold(status)
        self.span.set_attribute("rpc.response.status_code", code.name)
        self.span.set_attribute("dormouse.attempts", len(self.attempts))
        self.span.set_attribute("dormouse.migrated", any(self.attempts))
        if code is not grpc.StatusCode.OK:
            self.span.set_attribute("error.type", code.name)
        _count(self.span, self.last)
        self.span.set_status(status)
        self.span.end()

    async def _held(self, call: Call, on_held: OnHeld, limit_s: float) -> None:
        is_wake = call.wait.start is not Start.WARM
        if self.hold is None:
            self.hold = _Hold(self.now_ns(), self.wake(call, self.span) if is_wake else None)
        self.hold.num_parts += 1
        self.span.set_attribute("dormouse.start", call.wait.start.value)
        await on_held(limit_s)

    def _end_hold(self, status: Status) -> None:
        hold, self.hold = self.hold, None
        if hold:
            links = [Link(hold.wake)] if hold.wake else []
            within = set_span_in_context(self.span)
            span = self.tracer.start_span("hold", within, links=links, start_time=hold.since_ns)
            span.set_status(status)
            span.end(self.now_ns())


def _describe(span: Span, call: Call, request: Request) -> None:
    """Say what is asked for, never its words."""
    assert isinstance(request, pb.GenerateRequest)
    operation = "chat" if request.HasField("chat") else "text_completion"
    span.update_name(f"{operation} {call.deployment.full_name}")
    span.set_attribute("gen_ai.operation.name", operation)
    span.set_attribute("gen_ai.request.model", call.deployment.full_name)
    span.set_attribute("gen_ai.response.id", request.request_id)
    params: Any = request.sampling_params  # the stubs want each field's name spelled out
    for name, told in _PARAMETERS.items():
        if params.HasField(name):
            span.set_attribute(f"gen_ai.request.{told}", getattr(params, name))


def _count(span: Span, last: bytes) -> None:
    """Say what the last message tells of the whole answer, if it was its last."""
    try:
        message = pb.GenerateResponse.FromString(last)
    except DecodeError:
        return
    if message.HasField("usage"):
        span.set_attribute("gen_ai.usage.input_tokens", message.usage.prompt_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", message.usage.completion_tokens)
        span.set_attribute("gen_ai.usage.cache_read.input_tokens", message.usage.cached_tokens)
    if message.finish_reason:
        reason = pb.FinishReason.Name(message.finish_reason).removeprefix("FINISH_REASON_").lower()
        span.set_attribute("gen_ai.response.finish_reasons", [reason])
