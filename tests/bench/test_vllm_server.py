"""vLLM's server: started, stopped, asked over HTTP by the client of `dormouse bench`; what a run's figures are."""

from __future__ import annotations

import math
import os
import signal
import sys
from contextlib import asynccontextmanager
from itertools import pairwise

import aiohttp
import grpc
import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from bench import vllm_http
from bench.client import to_message
from bench.serve_client import Ask, drive, to_lap
from bench.vllm_http import Events, VllmClient, to_body, to_response
from bench.vllm_server import VllmServer, arguments
from bench.worker import free_port
from bench.workload import Request
from dormouse_api.client import ClientError
from dormouse_cli.load.figures import Run, Seen

METRICS = ("ttft", "tpot", "itl", "e2el")


def seen(due_s=0.0, sent_s=0.0, token_s=(1.0, 2.0, 4.0), count=3, **fields):
    fields = {"ready_s": sent_s, "output_tokens": count, "is_done": True, **fields}
    return Seen(due_s, sent_s=sent_s, token_s=list(token_s), **fields)


def test_a_lap_has_the_figures_by_vllm_s_names_and_the_client_s_own_lateness():
    told = to_lap(Run([seen(), seen(0.5, 1.0)], 4.0), {"ttft": 500.0}, [3, 3]).figures
    assert (told["request_throughput"], told["output_throughput"], told["request_goodput"]) == (0.5, 1.5, 0.25)
    assert told["p50_itl_ms"] == 1500
    assert told["p99_late_ms"] == pytest.approx(495)
    assert set(told) >= {f"p{percent}_{metric}_ms" for percent in (50, 99) for metric in METRICS}


def test_a_run_with_a_request_that_failed_or_fell_short_is_no_run():
    with pytest.raises(RuntimeError, match=r"request 1 got 2 tokens of 3$"):
        to_lap(Run([seen(), seen(count=2)], 4.0), {}, [3, 3])
    with pytest.raises(RuntimeError, match="request 0 got 3 tokens of 3: UNKNOWN no such model"):
        to_lap(Run([seen(error="UNKNOWN", words="no such model")], 4.0), {}, [3])


def event(*ids, **fields):
    return msgspec.json.encode({"id": "x", "choices": [{"index": 0, "text": "a\n\nb", "token_ids": ids}], **fields})


STREAM = b"".join(b"data: %s\n\n" % payload for payload in (event(5), event(6, 7), b"[DONE]"))


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_says_the_same_however_it_is_cut(cuts):
    ends = sorted({0, len(STREAM), *cuts})
    events = Events()
    payloads = [payload for begin, end in pairwise(ends) for payload in events.feed(STREAM[begin:end])]
    assert payloads == [event(5), event(6, 7)]
    assert repr(events) == "Events(0 bytes of the next)"


def test_what_is_no_data_is_passed_over():
    assert Events().feed(b": ping\n\ndata: 1\n\n") == [b"1"]


def test_an_event_is_our_message_and_an_error_in_the_stream_is_ours():
    assert list(to_response(event(6, 7)).token_ids) == [6, 7]
    assert not to_response(event(6)).HasField("usage")
    usage = to_response(b'{"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}').usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (4, 3)
    with pytest.raises(ClientError, match="out of memory"):
        to_response(b'{"error": {"message": "out of memory", "type": "x"}}')


def test_a_request_asks_for_token_ids_and_exactly_its_tokens():
    body = msgspec.json.decode(to_body(to_message(Request("1", [5, 6], 9))))
    expected = {"prompt": [5, 6], "max_tokens": 9, "temperature": 0, "ignore_eos": True, "stream": True}
    assert expected.items() <= body.items()


@asynccontextmanager
async def served(handler):
    """A server of this handler; gives its port."""
    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def answer(request):
    """Answer as vLLM does: a token for each asked, then what it took."""
    body = await request.json()
    response = web.StreamResponse()
    await response.prepare(request)
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
    payloads = [
        *(event(number) for number in range(body["max_tokens"])),
        msgspec.json.encode({"choices": [], "usage": usage}),
    ]
    for payload in (*payloads, b"[DONE]"):
        await response.write(b"data: %s\n\n" % payload)
    return response


async def refuse(_request):
    """Know no model."""
    return web.json_response({"error": {"message": "no such model"}}, status=404)


async def test_a_load_on_a_server_of_vllm_s_kind_has_all_its_figures():
    requests = tuple(Request(str(number), [number, 8], 4) for number in range(3))
    async with served(answer) as port:
        told = (await drive(Ask("vLLM", port, requests[0], requests, (0.0, 0.0, 0.01), 2, {"ttft": 60000.0}))).figures
    assert (told["completed"], told["total_input_tokens"], told["total_output_tokens"]) == (3, 6, 12)
    assert told["request_goodput"] == told["request_throughput"]
    assert all(math.isfinite(value) for value in told.values())


async def test_a_server_that_refuses_is_told_in_its_words():
    request = Request("1", [7], 4)
    async with served(refuse) as port:
        with pytest.raises(RuntimeError, match=r"request 0 got 0 tokens of 4: UNKNOWN 404.*no such model"):
            await drive(Ask("vLLM", port, request, (request,), (0.0,), 1, {}))


async def test_a_server_that_is_not_there_is_unavailable():
    async with aiohttp.ClientSession() as session:
        client = VllmClient(session, free_port())
        with pytest.raises(ClientError) as caught:
            await anext(client.generate(to_message(Request("1", [7], 4))))
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert repr(client).startswith("VllmClient(http://127.0.0.1:")


def test_vllm_s_server_is_told_model_type_and_port_and_its_clients_its_name():
    command = arguments("/models/x", "float32", 8123)
    told = dict(pairwise(command))
    assert (told["-m"], told["--model"], told["--dtype"]) == (
        "vllm.entrypoints.openai.api_server",
        "/models/x",
        "float32",
    )
    assert (told["--port"], told["--served-model-name"]) == ("8123", vllm_http.NAME)


def python(script):
    return [sys.executable, "-c", script]


def test_a_server_that_ends_before_it_answers_is_not_waited_for():
    with (
        VllmServer(python("raise SystemExit(3)"), free_port(), dict(os.environ)) as server,
        pytest.raises(RuntimeError, match="ended with 3"),
    ):
        server.wait_ready()


def test_a_server_runs_in_its_turns_only_and_ends_with_what_it_started(tmp_path):
    port, pipe = free_port(), tmp_path / "held-open"
    os.mkfifo(pipe)
    script = f"""
import http.server, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; held = open({str(pipe)!r}, 'w'); time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""
    with VllmServer(python(script), port, dict(os.environ)) as server:
        server.wait_ready()
        child = pipe.open()
        with server.turn():
            pass
        pid = int(repr(server).split("pid=")[1].split(",")[0])
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert os.WSTOPSIG(status) == signal.SIGSTOP
    with child:
        assert child.read() == "", "who holds the pipe open has ended"
