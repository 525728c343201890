"""The command line's part of a trace: OpenTelemetry as the standard variables set it up. Never in a command's way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dormouse_api.tracing import BadTracing, read_tracing, start_tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_EXPORTER = "opentelemetry.exporter.otlp.proto.grpc"


@contextmanager
def traced(
    env: Mapping[str, str], say: Callable[[str], None], *, has: Callable[[str], bool] | None = None
) -> Iterator[Tracer | None]:
    """Give what makes spans, None without the extra `tracing` or an endpoint. Bad settings are said, and it is off.

    The trace that TRACEPARENT and TRACESTATE name is continued. At the end the collector gets a few seconds to take
    the spans.
    """
    if not (has or _is_there)(_EXPORTER):
        yield None
        return
    try:
        tracing = start_tracing(read_tracing(env), service="dormouse-cli")
    except BadTracing as error:
        say(f"not traced: {error}")
        tracing = None
    with _continued(env):
        try:
            yield tracing.tracer if tracing else None
        finally:
            if tracing:
                tracing.close()


@contextmanager
def _continued(env: Mapping[str, str]) -> Iterator[None]:
    """Make the environment's trace the current one, if it names one."""
    named = {name.lower(): env[name] for name in ("TRACEPARENT", "TRACESTATE") if env.get(name)}
    if "traceparent" not in named:
        yield
        return
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = context.attach(TraceContextTextMapPropagator().extract(named))
    try:
        yield
    finally:
        context.detach(token)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the packages around it
        return False
