"""The clients in a trace: what calls carry, what their spans say, and that nothing is there without OpenTelemetry."""

from __future__ import annotations

import os
import subprocess
import sys

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from dormouse_api import client as api
from dormouse_api.client.traces import Untraced, begin, current
from dormouse_api.status import CallError
from dormouse_api.testing_spans import KeptSpans, span_id
from dormouse_api.v1 import inference_pb2 as pb
from tests.api.conftest import asleep

TRACE_ID, PARENT_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


@pytest.fixture
def spans():
    return KeptSpans()


@pytest.fixture
def client(connect, spans):
    return connect(tracer=spans.tracer)


def outer():
    """Return the context of a span that is not ours."""
    known = trace.SpanContext(TRACE_ID, PARENT_ID, is_remote=False, trace_flags=trace.TraceFlags(1))
    return trace.use_span(trace.NonRecordingSpan(known))


def sent(span):
    return f"00-{span.context.trace_id:032x}-{span_id(span):016x}-{span.context.trace_flags:02x}"


def test_a_request_begins_a_trace_and_carries_it(client, server, spans):
    assert client.texts("Hi") == ["Hi", "!"]
    span = spans.one("text_completion tiny")
    assert (span.parent, span.kind, span.status.status_code) == (None, SpanKind.CLIENT, StatusCode.UNSET)
    assert server.metadata[0]["traceparent"] == sent(span)
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "dormouse",
        "gen_ai.request.model": "tiny",
        "rpc.response.status_code": "OK",
    }


def test_a_request_continues_the_callers_trace_beside_its_key(connect, server, spans):
    with outer():
        connect(tracer=spans.tracer, api_key="sesame").chat([{"role": "user", "content": "Hello"}])
    span = spans.one("chat tiny")
    assert (span.context.trace_id, span.parent.span_id) == (TRACE_ID, PARENT_ID)
    assert server.metadata[0]["traceparent"] == sent(span)
    assert server.metadata[0]["authorization"] == "Bearer sesame"


def test_without_a_tracer_or_a_provider_the_callers_trace_passes_through(connect, server):
    with outer():
        connect().texts("Hi")
    assert server.metadata[0]["traceparent"] == f"00-{TRACE_ID:032x}-{PARENT_ID:016x}-01"


def test_where_there_is_no_trace_none_is_carried(connect, server):
    connect().texts("Hi")
    assert "traceparent" not in server.metadata[0]


@pytest.mark.parametrize(("method", "args"), [("tokenize", ("a",)), ("detokenize", ([1],)), ("get_model", ())], ids=str)
def test_other_calls_carry_the_trace_and_have_no_span(client, server, spans, method, args):
    with outer():
        client.one(method, *args, model="tiny")
    assert server.metadata[0]["traceparent"] == f"00-{TRACE_ID:032x}-{PARENT_ID:016x}-01"
    assert spans.all() == ()


def test_all_attempts_are_one_span(client, server, spans):
    server.errors = [asleep(1.0)]
    client.texts("Hi")
    span = spans.one("text_completion tiny")
    assert [metadata["traceparent"] for metadata in server.metadata] == [sent(span)] * 2
    assert span.status.status_code is StatusCode.UNSET


def test_an_error_is_told_with_its_code_and_words(client, server, spans):
    server.errors = [CallError(grpc.StatusCode.INTERNAL, "id 7")]
    with pytest.raises(api.ServerFault):
        client.texts("Hi")
    span = spans.one("text_completion tiny")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "id 7")
    assert span.attributes["rpc.response.status_code"] == span.attributes["error.type"] == "INTERNAL"


def test_who_stops_reading_ends_the_span_without_an_error(server, spans):
    server.stalls = True
    with api.Client(server.address, tracer=spans.tracer) as client:
        answer = client.generate(pb.GenerateRequest(model="tiny", text="Hi"))
        next(answer)
        assert spans.all() == ()
        answer.close()
    span = spans.one("text_completion tiny")
    assert (span.status.status_code, "error.type" in span.attributes) == (StatusCode.UNSET, False)


def test_the_last_messages_counts_are_told(spans):
    with begin(pb.GenerateRequest(model="tiny"), spans.tracer) as call:
        call.last = pb.GenerateResponse(usage=pb.Usage(prompt_tokens=5, completion_tokens=2))
    told = spans.one("text_completion tiny").attributes
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (5, 2)


def test_without_opentelemetry_nothing_is_traced(monkeypatch):
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert isinstance(begin(pb.GenerateRequest(model="tiny"), None), Untraced)
    assert current(None) == ()


def test_the_client_imports_nothing_of_opentelemetry():
    code = (
        "import sys\n"
        "from dormouse_api.client import Client, ClientError\n"
        "try:\n"
        "    Client('127.0.0.1:1').tokenize('a', model='m', timeout_s=5)\n"
        "except ClientError: pass\n"
        "try:\n"
        "    list(Client('127.0.0.1:1').generate_text('m', 'a', timeout_s=5))\n"
        "except ClientError: pass\n"
        "assert 'grpc' in sys.modules\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
