"""The worker's spans, made when a call has ended from the times that its streams kept: nothing is done per token.

Imported only where tracing is on. `generate` continues the gateway's trace; `queue`, `prefill` and `decode` are its
parts, once for each choice:

    arrival ─── queue ───▶ scheduled ─── prefill ───▶ first token ─── decode ───▶ last token
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import grpc
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dormouse_api.status import CallError
from dormouse_api.tickets import MetadataPairs
from dormouse_api.tracing import carrier
from dormouse_worker.front.requests.streams import OutputStream
from dormouse_worker.front.telemetry.tracing import Generation

_W3C = TraceContextTextMapPropagator()
_CALLERS_DOING = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.CANCELLED}


class Phase(NamedTuple):
    """A part of a choice's time, in seconds of the front's clock: [start, end)."""

    name: str
    start_s: float
    end_s: float


def phases(stream: OutputStream, now_s: float) -> Iterator[Phase]:
    """Yield what of its way a choice has gone; the last part ends now if it did not end itself. Pure."""
    times = stream.times
    first_s = times.first_token_s
    if first_s is not None:
        scheduled_s = max(times.arrival_s, first_s - times.prefill_s)
        yield Phase("queue", max(times.arrival_s, scheduled_s - times.queue_s), scheduled_s)
        yield Phase("prefill", scheduled_s, first_s)
        yield Phase("decode", first_s, first_s + times.decode_s)
    elif stream.is_started:
        scheduled_s = min(now_s, times.arrival_s + times.queue_s)
        yield Phase("queue", times.arrival_s, scheduled_s)
        yield Phase("prefill", scheduled_s, now_s)
    elif not stream.is_finished or stream.error:
        yield Phase("queue", times.arrival_s, now_s)


class OtelTraces:
    """Makes the spans."""

    def __init__(self, tracer: Tracer, *, clock: Callable[[], float], now_ns: Callable[[], int] = time.time_ns) -> None:
        """Take what makes spans, the clock of the streams' times, and the wall clock."""
        self._tracer = tracer
        self._clock = clock
        self._now_ns = now_ns

    def ended(
        self, metadata: MetadataPairs | None, arrival_s: float, generation: Generation | None, error: CallError | None
    ) -> None:
        """See `Traces`."""
        now_s, now_ns = self._clock(), self._now_ns()

        def wall_ns(at_s: float) -> int:
            return now_ns - int((now_s - at_s) * 1e9)

        within = _W3C.extract(carrier(metadata))
        span = self._tracer.start_span("generate", within, SpanKind.SERVER, start_time=wall_ns(arrival_s))
        if not span.is_recording():
            return
        if generation:
            _describe(span, generation)
            for stream in generation.streams:
                self._add_phases(span, stream, now_s, wall_ns)
        _judge(span, generation, error)
        span.end(now_ns)

    def _add_phases(self, span: Span, stream: OutputStream, now_s: float, wall_ns: Callable[[float], int]) -> None:
        within = set_span_in_context(span)
        for name, start_s, end_s in phases(stream, now_s):
            attributes = {"dormouse.choice": stream.choice_index, "dormouse.tokens": stream.num_tokens}
            part = self._tracer.start_span(name, within, attributes=attributes, start_time=wall_ns(start_s))
            part.end(wall_ns(end_s))


def _describe(span: Span, generation: Generation) -> None:
    """Say how much there was and how it ended, never its words."""
    streams = generation.streams
    span.set_attribute("gen_ai.response.id", generation.facts.request_id)
    span.set_attribute("gen_ai.usage.input_tokens", len(generation.facts.prompt_token_ids))
    span.set_attribute("gen_ai.usage.output_tokens", sum(stream.num_tokens for stream in streams))
    span.set_attribute("gen_ai.usage.cache_read.input_tokens", streams[0].cached_tokens)
    span.set_attribute("gen_ai.response.finish_reasons", [stream.finish_reason or "none" for stream in streams])


def _judge(span: Span, generation: Generation | None, error: CallError | None) -> None:
    is_complete = generation is not None and all(stream.finish_reason for stream in generation.streams)
    code = error.code if error else grpc.StatusCode.OK if is_complete else grpc.StatusCode.CANCELLED
    span.set_attribute("rpc.response.status_code", code.name)
    if code is not grpc.StatusCode.OK:
        span.set_attribute("error.type", code.name)
    if error and code not in _CALLERS_DOING:
        span.set_status(Status(StatusCode.ERROR, error.message))
