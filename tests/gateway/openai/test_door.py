"""The port itself: what is slow, large or broken is answered or sent away, and ends in order."""

import asyncio
import io
import json
from contextlib import suppress

import aiohttp
import openai
import pytest

from dormouse_gateway.openai.bodies import MAX_BODY_BYTES
from dormouse_gateway.openai.headers import MAX_HEADER_BYTES
from tests.gateway.openai.raw import Raw

ASK = {"model": "tiny", "prompt": "a"}
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"


@pytest.fixture
async def connect():
    writers = []

    async def make(house):
        reader, writer = await asyncio.open_connection("127.0.0.1", house.ports.openai)
        writers.append(writer)
        return Raw(reader, writer)

    yield make
    for writer in writers:
        writer.transport.abort()


async def until_refused(connect, house):
    """Connect until the port is closed; return the connections."""
    opened = []
    with suppress(OSError):
        while True:
            opened.append(await connect(house))
    return opened


async def post(house, path="/v1/completions", content_type="application/json", **body):
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"http://127.0.0.1:{house.ports.openai}{path}", headers={"content-type": content_type}, **body
        ) as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe\xfd", "no JSON"),
        (b"[]", "body is []; allowed: an object"),
        (b'{"model": "tiny"}', "prompt is missing"),
        (b'{"model": "tiny", "prompt": "a", "top_p": NaN}', "NaN"),
        (b'{"model": "tiny", "prompt": "a", "temperature": 1e999}', "temperature is Infinity"),
        (b'{"model": "tiny", "prompt": "a", "seed": 1' + 400 * b"0" + b"}", "seed is 1"),
        (b'{"model": "tiny", "prompt": "a", "seed": 1' + 9000 * b"0" + b"}", "no JSON"),
        (b'{"model": "tiny", "prompt": "\\ud800"}', "prompt is no text"),
        (b'{"model": "tiny", "prompt": "a", "\\ud800": 1}', "no text"),
        (b'{"model": "tiny", "prompt": [1, true]}', "prompt[1] is true"),
        (b'{"model": "tiny", "prompt": ["a", 1]}', "prompt[1] is 1"),
        (b'{"model": "tiny", "prompt": [[1], []]}', "prompt[1] is 0 items"),
        (b'{"model": "tiny", "prompt": [' + 256 * b"[1]," + b"[1]]}", "prompt is 257 items"),
        (b'{"model": "tiny", "prompt": [' + 16 * b"[1]," + b'[1]], "n": 16}', "prompt is 17 prompts with n 16"),
        (b'{"model": "tiny", "prompt": "a", "max_tokens": 0}', "max_tokens is 0; allowed: at least 1, or 0 with echo"),
        (b'{"model": "tiny", "prompt": "a", "prompt_logprobs": 0, "stream": true}', "prompt_logprobs is set with"),
        (b'{"model": "tiny", "prompt": "a", "structured_outputs": {}}', "structured_outputs is none of its kinds"),
        (
            b'{"model": "tiny", "prompt": "a", "guided_json": {}}',
            "guided_json is not supported: use structured_outputs.json",
        ),
        (b'{"model": "tiny", "prompt": ' + 100 * b"[" + 100 * b"]" + b"}", "nested deeper than 30"),
        (b'{"model": "tiny", "prompt": ' + 100_000 * b"[" + 100_000 * b"]" + b"}", "nested deeper than 30"),
        (b'{"model": "tiny", "prompt": "a", "echo": true, "stream": true}', "echo is true with stream"),
        (b'{"model": "tiny", "prompt": "a", "best_of": 2}', "best_of is 2; allowed: 1"),
    ],
)
async def test_a_bad_body_is_400_and_says_what_is_wrong(house, raw, words):
    status, body = await post(house, data=raw)
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert words in body["error"]["message"]


async def test_only_json_is_read(house):
    status, body = await post(house, content_type="text/plain", data=b"{}")
    assert (status, "text/plain" in body["error"]["message"]) == (415, True)


async def test_an_unknown_path_and_a_wrong_method_are_told_in_the_same_form(house):
    assert (await post(house, "/v1/images", data=b"{}"))[0] == 404
    status, body = await post(house, "/v1/models", data=b"{}")
    assert (status, "openapi.json" in body["error"]["message"]) == (405, True)


async def test_a_body_that_says_how_large_it_is_is_refused_before_it_is_sent(house, connect):
    raw = await connect(house)
    raw.say(HEAD + f"content-length: {MAX_BODY_BYTES + 1}\r\n\r\n".encode())
    status, _, body = await raw.response()
    assert (status, str(MAX_BODY_BYTES) in body["error"]["message"]) == (413, True)


async def test_a_body_that_does_not_say_it_is_refused_at_the_limit(house):
    async def endless():
        while True:
            yield b" " * 65536

    status, _ = await post(house, data=endless())
    assert status == 413


async def test_a_request_that_is_too_large_as_a_message_is_413_too(house):
    body = io.BytesIO(json.dumps(ASK | {"prompt": "a" * (1 << 20)}).encode())
    status, body = await post(house, data=body)
    assert (status, "1048576" in body["error"]["message"]) == (413, True)


@pytest.mark.parametrize("sent", [b"HELLO\r\n\r\n", HEAD + b"x: " + b"a" * MAX_HEADER_BYTES])
async def test_what_is_no_http_and_headers_that_are_too_large_are_400(house, connect, sent):
    raw = await connect(house)
    raw.say(sent)
    status, headers, body = await raw.response()
    assert (status, headers["connection"]) == (400, "close")
    assert str(MAX_HEADER_BYTES) in body["error"]["message"]


async def test_large_headers_that_come_at_once_are_431(house, connect):
    raw = await connect(house)
    raw.say(HEAD + b"x: " + b"a" * MAX_HEADER_BYTES + b"\r\n\r\n")
    status, _, body = await raw.response()
    assert (status, str(MAX_HEADER_BYTES) in body["error"]["message"]) == (431, True)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/comp", HEAD])
async def test_headers_that_do_not_come_in_time_end_the_connection(make_house, connect, sent):
    async with make_house(http_timeout_s=0.1) as house:
        raw = await connect(house)
        raw.say(sent)
        assert await raw.until_closed() == b""


async def test_a_second_request_has_no_more_time_than_the_first(make_house, connect):
    """What comes byte by byte would else keep the connection for ever: each byte ends uvicorn's own timer."""
    async with make_house(http_timeout_s=1.0) as house:
        raw = await connect(house)
        raw.say(b"GET /v1/models HTTP/1.1\r\nhost: h\r\n\r\n")
        assert (await raw.response())[0] == 200
        raw.say(b"GET /v1/mod")
        assert await raw.until_closed() == b""


async def test_a_body_that_does_not_come_in_time_is_408(make_house, connect):
    async with make_house(http_timeout_s=1.0) as house:
        raw = await connect(house)
        raw.say(HEAD + b"content-length: 10\r\n\r\n{")
        assert (await raw.response())[0] == 408


async def test_who_does_not_take_his_answer_is_sent_away_and_his_worker_freed(make_house, worker, connect):
    async with make_house(http_timeout_s=1.0) as house:
        await house.add("tiny", [worker])
        worker.tokens = (8,) * 20_000
        raw = await connect(house)
        body = json.dumps(ASK | {"stream": True, "max_tokens": 20_000}).encode()
        raw.say(HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        await raw.reader.readuntil(b"data: ")
        raw.writer.transport.pause_reading()
        await worker.cancelled.wait()
        assert house.outstanding() == 0


async def test_an_idle_connection_is_kept_for_longer_than_openais_client_keeps_it(house):
    """Else the client asks now and then as the gateway hangs up, and has no answer."""
    kept_s = house.gateway._openai._server.config.timeout_keep_alive
    assert kept_s == 30
    assert kept_s > openai.DEFAULT_CONNECTION_LIMITS.keepalive_expiry


async def test_connections_beyond_the_limit_are_closed(make_house, connect):
    async with make_house(http_max_connections=1) as house:
        first = await connect(house)
        first.say(b"GET /v1/models HTTP/1.1\r\nhost: h\r\n\r\n")
        assert (await first.response())[0] == 200
        assert await (await connect(house)).until_closed() == b""
        first.writer.transport.abort()
        await house.until(lambda: not house.gateway._openai._server.server_state.connections)
        again = await connect(house)
        again.say(b"GET /v1/models HTTP/1.1\r\nhost: h\r\n\r\n")
        assert (await again.response())[0] == 200


async def test_before_the_models_are_known_it_is_503_with_a_time(make_house, connect):
    async with make_house() as house:
        house.gateway.router.is_synced = False
        raw = await connect(house)
        raw.say(b"GET /v1/models HTTP/1.1\r\nhost: h\r\n\r\n")
        status, headers, body = await raw.response()
        assert (status, headers["retry-after"], body["error"]["type"]) == (503, "1", "server_error")


async def test_at_the_end_a_running_stream_finishes_and_nobody_else_is_let_in(house, client, worker, connect):
    worker.is_gated = True
    stream = await client.completions.create(model="tiny", prompt="a", stream=True)
    words = [(await anext(stream)).choices[0].text]
    house.stop.set()
    await house.until(lambda: house.gateway._openai._server.should_exit)
    await until_refused(connect, house)
    done, _ = await asyncio.wait({house.running}, timeout=0.5)  # uvicorn looks ten times a second whether to cut off
    assert not done
    worker.gate.set()
    words += [chunk.choices[0].text async for chunk in stream]
    assert "".join(words) == "Hello dormouse"
    await house.running


async def test_who_comes_while_the_port_closes_and_says_nothing_does_not_hold_up_the_end(make_house, connect):
    async with make_house(drain_timeout_s=1000, http_timeout_s=1000) as house:
        house.stop.set()
        for opened in await until_refused(connect, house):
            await opened.until_closed()
        await house.running


async def test_a_stream_that_outlives_the_drain_timeout_is_cut_off(make_house, worker, open_client, caplog):
    async with make_house(drain_timeout_s=0.1) as house:
        await house.add("tiny", [worker])
        worker.is_gated = True
        stream = await open_client(house).completions.create(model="tiny", prompt="a", stream=True)
        await anext(stream)
        house.stop.set()
        await house.running
        await worker.cancelled.wait()
        with pytest.raises(openai.APIConnectionError):
            await anext(stream)
    assert "Traceback" not in caplog.text


async def test_a_mistake_of_ours_is_500_with_the_id_that_stands_in_the_log(house, caplog, monkeypatch):
    monkeypatch.setattr(house.gateway.router, "models", lambda _: 1 / 0)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{house.ports.openai}/v1/models", headers={"x-request-id": "mine"}) as response,
    ):
        assert (response.status, response.headers["x-request-id"]) == (500, "mine")
        assert "look for mine" in (await response.json())["error"]["message"]
    assert "error in request mine" in caplog.text


async def test_an_id_that_can_not_stand_in_a_log_is_refused(house):
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{house.ports.openai}/v1/models", headers={"x-request-id": "a" * 129}) as answer,
    ):
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, "x-request-id")
        assert len(answer.headers["x-request-id"]) == 36


SMUGGLED = b"GET /v1/models HTTP/1.1\r\nhost: h\r\n\r\n"
ENDS_TWICE = (
    (b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED),
    (
        b"Transfer-Encoding: chunked\r\nContent-Length: "
        + str(5 + len(SMUGGLED)).encode()
        + b"\r\n\r\n0\r\n\r\n"
        + SMUGGLED
    ),
)


@pytest.mark.parametrize("rest", ENDS_TWICE)
@pytest.mark.parametrize(
    "head", [HEAD, b"GET /v1/models HTTP/1.1\r\nhost: h\r\n", b"POST /nowhere HTTP/1.1\r\nhost: h\r\n"]
)
async def test_a_body_whose_end_is_told_twice_is_400_and_the_last_thing_on_its_connection(house, connect, head, rest):
    raw = await connect(house)
    raw.say(head + rest)
    status, headers, body = await raw.response()
    assert (status, headers.get("connection")) == (400, "close")
    assert "content-length and transfer-encoding are both given" in body["error"]["message"]
    assert await raw.until_closed() == b"", "what followed was not taken for a request"
