"""Tracing as all parts set it up: when it is on, what it refuses, and that it is never in the way."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from dormouse_api.tracing import BadTracing, Tracing, TracingSettings, carrier, read_tracing, start_tracing

OTLP = "OTEL_EXPORTER_OTLP_ENDPOINT"
URL = "http://127.0.0.1:4317"


@pytest.mark.parametrize(
    "env",
    [
        {},
        {OTLP: "  "},
        {OTLP: URL, "OTEL_SDK_DISABLED": "true"},
        {OTLP: URL, "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_TRACES_SAMPLER": "nonsense"},  # nobody's business while it is off
    ],
)
def test_without_an_endpoint_or_by_order_it_is_off(env):
    assert read_tracing(env) == TracingSettings("")
    assert start_tracing(read_tracing(env), service="x") is None


def test_the_nearest_endpoint_counts():
    both = {OTLP: "http://all:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://spans:2"}
    assert read_tracing({OTLP: URL}).endpoint == URL
    assert read_tracing(both).endpoint == "https://spans:2"
    assert read_tracing(both, "http://flag:3").endpoint == "http://flag:3"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        (OTLP, "collector:4317", "allowed is http://HOST:PORT"),
        (OTLP, "http://", "allowed is http://HOST:PORT"),
        (OTLP, "http://host:99999", "allowed is http://HOST:PORT"),
        (OTLP, "ftp://host:1", "allowed is http://HOST:PORT"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "allowed are grpc"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "allowed are always_on"),
        ("OTEL_TRACES_SAMPLER_ARG", "2", "allowed is a number from 0 to 1"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan", "allowed is a number from 0 to 1"),
        ("OTEL_TRACES_SAMPLER_ARG", "half", "allowed is a number from 0 to 1"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(name, value, allowed):
    with pytest.raises(BadTracing, match=allowed) as caught:
        read_tracing({OTLP: URL, name: value})
    assert str(caught.value).startswith(f"{name} is {value!r}; ")


def test_a_bad_flag_is_named_as_the_flag():
    with pytest.raises(BadTracing, match=r"^--tracing-endpoint is 'x'"):
        read_tracing({}, "x")


def test_only_the_trace_context_is_carried():
    metadata = (("traceparent", "a"), ("authorization", "secret"), ("tracestate", "b"))
    assert carrier(metadata) == {"traceparent": "a", "tracestate": "b"}
    assert carrier(None) == {}


def test_the_resource_names_service_and_instance_and_the_environment_may_name_them_otherwise(monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=mine,deployment.environment=test")
    tracing = start_tracing(TracingSettings(URL), service="dormouse-x", host_name="theirs", k8s_pod_uid="")
    assert tracing
    span = tracing.tracer.start_span("a")
    attributes = dict(span.resource.attributes)
    assert attributes["service.name"] == "dormouse-x"
    assert (attributes["host.name"], attributes["deployment.environment"]) == ("mine", "test")
    assert "k8s.pod.uid" not in attributes
    tracing.close(timeout_s=5)


class Stuck(SpanExporter):
    """A collector's client that does not come back before it is shut down."""

    def __init__(self):
        self.entered, self.is_over = threading.Event(), threading.Event()
        self.num_sent = 0

    def export(self, spans):
        self.entered.set()
        self.is_over.wait(60)
        self.num_sent += len(spans)
        return SpanExportResult.FAILURE

    def shutdown(self):
        self.is_over.set()


def test_a_collector_that_hangs_fills_a_bounded_queue_and_stops_nobody(monkeypatch):
    """Making spans goes on while nothing is sent; what does not fit is dropped; the end does not wait for it."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    exporter = Stuck()
    tracing = Tracing(exporter, service="x", attributes={})
    for _ in range(1000):
        tracing.tracer.start_span("a").end()
    assert exporter.entered.wait(30)
    tracing.close(timeout_s=0.2)
    assert exporter.is_over.is_set()
    assert exporter.num_sent <= 64 + 8


def test_the_end_breaks_off_what_a_silent_collector_leaves_open():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never says a word
        tracing = start_tracing(TracingSettings(f"http://127.0.0.1:{silent.getsockname()[1]}"), service="x")
        assert tracing
        tracing.tracer.start_span("a").end()
        ended = threading.Thread(target=tracing.close, args=(0.2,), daemon=True)
        ended.start()
        ended.join(9)  # an export may take 10 s, and is tried again
        assert not ended.is_alive()


@pytest.mark.parametrize("program", ["dormouse_gateway", "dormouse_worker", "dormouse_operator"])
def test_nothing_of_opentelemetry_is_imported_where_it_is_off(program):
    check = f"import sys, {program}.__main__; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "[]\n"
