"""The Python clients against a real gRPC server, the same cases for both: errors, retries, streams, limits."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from dormouse_api import client as api
from dormouse_api.client.errors import ClientError
from dormouse_api.status import CallError
from tests.api.conftest import asleep


def test_text_and_chat_come_in_pieces(connect):
    client = connect()
    assert client.texts("Hi", max_tokens=2) == ["Hi", "!"]
    assert client.chat([{"role": "user", "content": "Hello"}]) == ["Hello", "!"]


def test_unary_calls_answer(connect):
    client = connect()
    assert list(client.one("tokenize", "abc", model="tiny")) == [3]
    assert client.one("detokenize", [1, 2], model="tiny") == "[1, 2]"
    assert client.one("get_model", "tiny").name == "tiny"


@pytest.mark.parametrize(
    ("code", "seconds", "error"),
    [
        ("INVALID_ARGUMENT", None, api.InvalidRequest),
        ("NOT_FOUND", None, api.ModelNotFound),
        ("UNAUTHENTICATED", None, api.NotPermitted),
        ("PERMISSION_DENIED", None, api.NotPermitted),
        ("RESOURCE_EXHAUSTED", 60.0, api.Overloaded),
        ("UNAVAILABLE", 60.0, api.NotAvailable),
        ("UNAVAILABLE", None, api.Unreachable),
        ("DEADLINE_EXCEEDED", None, api.TimedOut),
        ("UNIMPLEMENTED", None, api.ServerTooOld),
        ("INTERNAL", None, api.ServerFault),
        ("UNKNOWN", None, api.ServerFault),
    ],
)
@pytest.mark.parametrize("method", ["texts", "get_model"])
def test_each_status_is_an_error_of_its_own_with_the_servers_words(connect, server, method, code, seconds, error):
    server.errors = [CallError(grpc.StatusCode[code], "the words", seconds)]
    client = connect()
    with pytest.raises(error, match=r"^the words$") as caught:
        client.texts("Hi") if method == "texts" else client.one(method, "tiny")
    assert type(caught.value) is error
    assert (caught.value.code.name, caught.value.retry_after_s) == (code, seconds)
    assert server.calls == 1, "what the server does not want again, or not so soon, is not asked again"


@pytest.mark.parametrize("method", ["texts", "get_model"])
def test_what_may_be_retried_is_after_the_time_that_the_server_asks_for(connect, server, method):
    server.errors = [asleep(5.0), CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", 2.0)]
    client = connect()
    client.texts("Hi") if method == "texts" else client.one(method, "tiny")
    assert server.calls == 3
    assert [round(slept) for slept in client.slept] == [5, 2]
    assert client.slept[0] >= 5.0


def test_retries_end_with_the_last_error(connect, server):
    server.errors = [asleep(0.1) for _ in range(9)]
    with pytest.raises(api.NotAvailable):
        connect(retry=api.RetryPolicy(max_attempts=3)).texts("Hi")
    assert server.calls == 3


def test_never_means_once(connect, server):
    server.errors = [asleep(0.1)]
    with pytest.raises(api.NotAvailable):
        connect(retry=api.RetryPolicy.never()).texts("Hi")
    assert server.calls == 1


def test_a_retry_that_the_time_limit_does_not_leave_room_for_is_not_waited_for(connect, server):
    server.errors = [asleep(20.0)]
    client = connect(timeout_s=10.0)
    with pytest.raises(api.NotAvailable):
        client.texts("Hi")
    assert (server.calls, client.slept) == (1, [])


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL"])
def test_an_answer_that_broke_off_is_never_asked_again(connect, server, code):
    server.break_after_first = CallError(grpc.StatusCode[code], "tiny is asleep", 0.1)
    with pytest.raises(api.Interrupted, match="tiny is asleep"):
        connect().texts("Hi")
    assert server.calls == 1


def test_a_call_ends_with_its_time_limit(connect, server):
    server.stalls = True
    with pytest.raises(api.TimedOut):
        connect().texts("Hi", timeout_s=0.2)


def test_where_nobody_answers_it_is_unreachable(connect):
    with pytest.raises(api.Unreachable):
        connect("127.0.0.1:1").one("get_model", "tiny")


def test_the_api_key_goes_with_every_call(connect, server):
    client = connect(api_key="sesame")
    client.texts("Hi")
    client.one("get_model", "tiny")
    assert [sent["authorization"] for sent in server.metadata] == ["Bearer sesame"] * 2
    assert "sesame" not in repr(client.client)


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "schlüssel"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_repeated(key):
    with pytest.raises(ValueError, match=r"^api_key holds characters that no header can hold"):
        api.Client("127.0.0.1:1", api_key=key)


def test_a_sampling_parameter_that_does_not_exist_is_named(connect):
    with pytest.raises(ValueError, match="temprature"):
        connect().texts("Hi", temprature=1)


def test_a_request_that_is_too_large_is_the_callers_fault(connect):
    with pytest.raises((api.InvalidRequest, api.Overloaded)) as caught:
        connect(retry=api.RetryPolicy.never()).texts("x" * (2 << 20))
    assert type(caught.value) is api.InvalidRequest


def test_who_stops_reading_ends_the_call(server):
    server.stalls = True
    with api.Client(server.address) as client:
        stream = client.generate_text("tiny", "Hi")
        assert next(stream) == "Hi"
        stream.close()
        assert server.ended.wait(20)


async def test_who_stops_reading_ends_the_call_in_asyncio_too(server):
    server.stalls = True
    async with api.AsyncClient(server.address) as client:
        stream = client.generate_text("tiny", "Hi")
        assert await anext(stream) == "Hi"
        await stream.aclose()
        assert await asyncio.to_thread(server.ended.wait, 20)


@pytest.mark.parametrize("name", [name for name in api.__all__ if isinstance(getattr(api, name), type)])
def test_everything_public_is_described(name):
    public = getattr(api, name)
    assert public.__doc__
    methods = [one for one in vars(public).items() if callable(one[1]) and not one[0].startswith("_")]
    assert [method for method, value in methods if not value.__doc__] == []
    assert not issubclass(public, ClientError) or len(public.__doc__) > 20
