"""The command line in a trace: its spans reach a collector, it continues its caller's, and it is never in the way."""

from __future__ import annotations

import asyncio

import pytest

from dormouse_api.client.traces import current
from dormouse_cli.traces import traced
from tests.cli import kit
from tests.cli.test_bench import SMALL, gateway  # noqa: F401  # a fixture
from tests.cli.test_cli import server  # noqa: F401  # a fixture
from tests.faults.collector import collecting

# ruff: noqa: F811  # fixtures are named by their arguments
TRACE_ID, PARENT_ID = bytes(range(16)), bytes(range(8))
OTLP = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in (OTLP, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "TRACEPARENT", "TRACESTATE"):
        monkeypatch.delenv(name, raising=False)


def within(monkeypatch):
    """Call the command from within a trace."""
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE_ID.hex()}-{PARENT_ID.hex()}-01")


async def test_an_answer_is_a_span_in_its_callers_trace(dormouse, server, monkeypatch):
    within(monkeypatch)
    async with collecting() as collector:
        monkeypatch.setenv(OTLP, collector.url)
        args = ("generate", "Say", "--model", "tiny", "--address", server.address)
        result = await asyncio.to_thread(dormouse, kit.cluster(), *args)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello\n", "")
    (told,) = collector.named("text_completion tiny")
    assert (told.service, told.span.trace_id, told.span.parent_span_id) == ("dormouse-cli", TRACE_ID, PARENT_ID)


async def test_each_request_of_a_load_is_a_span(dormouse, gateway, monkeypatch):
    async with collecting() as collector:
        monkeypatch.setenv(OTLP, collector.url)
        args = ("bench", "--model", "tiny", "--address", gateway.address, *SMALL)
        result = await asyncio.to_thread(dormouse, kit.cluster(), *args)
    assert result.exit_code == 0
    assert len(collector.named("text_completion tiny")) == 2 + 6
    assert len({told.span.trace_id for told in collector.told}) == 2 + 6, "each begins a trace of its own"


def test_without_a_collector_the_callers_trace_is_still_continued():
    with traced({"TRACEPARENT": f"00-{TRACE_ID.hex()}-{PARENT_ID.hex()}-01"}, pytest.fail) as tracer:
        assert tracer is None
        assert dict(current(None)) == {"traceparent": f"00-{TRACE_ID.hex()}-{PARENT_ID.hex()}-01"}
    assert current(None) == ()


def test_bad_settings_are_said_and_the_command_goes_on(dormouse, server, monkeypatch):
    monkeypatch.setenv(OTLP, "collector:4317")
    result = dormouse(kit.cluster(), "generate", "Say", "--model", "tiny", "--address", server.address)
    assert (result.exit_code, result.stdout) == (0, "Hello\n")
    assert result.stderr.startswith(f"not traced: {OTLP} is 'collector:4317'; allowed is http://HOST:PORT")


def test_without_the_extra_nothing_is_traced_or_said():
    env = {OTLP: "http://127.0.0.1:1", "TRACEPARENT": f"00-{TRACE_ID.hex()}-{PARENT_ID.hex()}-01"}
    with traced(env, pytest.fail, has=lambda _: False) as tracer:
        assert tracer is None


def test_without_settings_nothing_is_traced_or_said():
    with traced({}, pytest.fail) as tracer:
        assert tracer is None
