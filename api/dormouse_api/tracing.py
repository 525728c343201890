"""OpenTelemetry as every part sets it up: off unless an endpoint is named, and never in a request's way.

Knows no part. Imports nothing of OpenTelemetry before it is on. Which spans there are is each part's own matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

ENDPOINT, SIGNAL_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
SAMPLER, RATIO = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SAMPLERS = tuple(
    f"{kind}{name}" for kind in ("", "parentbased_") for name in ("always_on", "always_off", "traceidratio")
)
CLOSE_S = 2.0  # what spans that still wait get to reach the collector when the process ends


class BadTracing(ValueError):
    """Tracing cannot be set up; the message names the variable, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """What our own code decides by; all else (headers, certificates, queue, sampler) the SDK reads itself."""

    endpoint: str = ""  # of a collector that takes OTLP over gRPC: http(s)://HOST:PORT; "" = tracing is off


def read_tracing(env: Mapping[str, str], endpoint: str = "") -> TracingSettings:
    """Return the settings that the standard variables make; `endpoint` stands over theirs. Raises BadTracing."""
    is_off = env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER") == "none"
    named = {"--tracing-endpoint": endpoint, **{name: env.get(name, "") for name in (SIGNAL_ENDPOINT, ENDPOINT)}}
    name, value = next(((name, text.strip()) for name, text in named.items() if text.strip()), ("", ""))
    if is_off or not value:
        return TracingSettings()
    check_endpoint(name, value)
    _check_one_of(env, next((name for name in _PROTOCOLS if env.get(name)), ""), ("grpc",))
    _check_one_of(env, SAMPLER, _SAMPLERS)
    _check_ratio(env)
    return TracingSettings(value)


class Tracing:
    """Where spans go: to a bounded queue, from there by a thread to the collector. A full queue drops them."""

    def __init__(self, exporter: SpanExporter, *, service: str, attributes: Mapping[str, str]) -> None:
        """Take who sends spans, and the resource that they are of; OTEL_RESOURCE_ATTRIBUTES stand over `attributes`."""
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        ours = Resource({"service.name": service, **{name: value for name, value in attributes.items() if value}})
        resource = ours.merge(OTELResourceDetector().detect())
        self._exporter = exporter
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))

    @property
    def tracer(self) -> Tracer:
        """Return what makes spans."""
        return self._provider.get_tracer("dormouse")

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Send what still waits. Returns after the timeout, and little more, though the collector does not answer."""
        closing = Thread(target=self._provider.shutdown, name="tracing ends", daemon=True)
        closing.start()
        closing.join(timeout_s)
        if closing.is_alive():
            self._exporter.shutdown()  # breaks off what is on its way, and everything after that
            closing.join(timeout_s)


def start_tracing(settings: TracingSettings, *, service: str, **attributes: str) -> Tracing | None:
    """Return where spans go, None if tracing is off. Connects later. Raises BadTracing without the extra `tracing`."""
    if not settings.endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise BadTracing(f"tracing needs the extra `tracing` (pip install 'dormouse[tracing]'): {error}") from error
    named = {name.replace("_", "."): value for name, value in attributes.items()}
    return Tracing(OTLPSpanExporter(endpoint=settings.endpoint), service=service, attributes=named)


def carrier(metadata: Any) -> dict[str, str]:
    """Return the W3C trace context in a call's metadata, as propagators read it."""
    return {key: value for key, value in metadata or () if key in {"traceparent", "tracestate"}}


def check_endpoint(name: str, value: str) -> None:
    """Raise BadTracing unless the value of this variable is a URL that spans can be sent to."""
    try:
        url = urlsplit(value)
        is_good = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise BadTracing(f"{name} is {value!r}; allowed is http://HOST:PORT or https://HOST:PORT")


def _check_one_of(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> None:
    value = env.get(name, "").strip()
    if value and value.lower() not in allowed:
        raise BadTracing(f"{name} is {value!r}; allowed are {', '.join(allowed)}")


def _check_ratio(env: Mapping[str, str]) -> None:
    text = env.get(RATIO, "").strip()
    try:
        is_good = 0 <= float(text or 0) <= 1
    except ValueError:
        is_good = False
    if not is_good:
        raise BadTracing(f"{RATIO} is {text!r}; allowed is a number from 0 to 1")
