"""OpenAI's API in front of one worker, without Kubernetes: the gateway's own way, with an unchanging catalogue."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys

import pytest
from openai import AsyncOpenAI

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.testing import TalkingWorker
from dormouse_gateway.standalone import Door, invitation, parse_flags
from tests.waiting import until

HI = [{"role": "user", "content": "hi"}]
WAIT_S = 90


@pytest.fixture
async def worker():
    """A worker that is not ready yet."""
    made = TalkingWorker(name="tiny")
    await made.start()
    made.tell_load(ready=False)
    yield made
    await made.stop()


@pytest.fixture
async def client(worker):
    """OpenAI's client of a door in front of the worker, which answers to two names."""
    host, _, port = worker.address.rpartition(":")
    door, listener = Door(("tiny", "org/other"), (host, int(port)), ["sql"]), socket.create_server(("127.0.0.1", 0))
    await door.start(listener)
    base = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    async with AsyncOpenAI(api_key="none", base_url=base, max_retries=0, timeout=WAIT_S) as made:
        made.door = door
        yield made
    await door.stop()


async def test_the_models_are_listed_while_the_worker_still_loads(client):
    listed = {model.id: getattr(model, "parent", None) async for model in client.models.list()}
    assert listed == {"org/other": None, "tiny": None, "sql": "tiny"}
    assert not client.door.ready.is_set()


async def test_a_request_that_comes_while_it_loads_waits_and_is_answered(client, worker):
    asked = asyncio.create_task(client.chat.completions.create(model="tiny", messages=HI))
    router = client.door.router
    key = router.resolve("tiny").deployment.key
    await until(lambda: router.activity.activity(key).held)
    worker.tell_load(ready=True)
    assert (await asked).choices[0].message.content
    assert client.door.ready.is_set()


async def test_it_answers_streamed_and_whole_under_each_name(client, worker):
    worker.tell_load(ready=True)
    whole = await client.chat.completions.create(model="org/other", messages=HI)
    stream = await client.completions.create(model="tiny", prompt="hi", stream=True)
    pieces = [event.choices[0].text async for event in stream if event.choices]
    assert "".join(pieces) == whole.choices[0].message.content


async def test_an_adapter_is_a_model_and_the_worker_hears_its_name(client, worker):
    worker.tell_load(ready=True)
    for name in ("sql", "tiny:sql", "local/model-0:sql"):
        await client.completions.create(model=name, prompt="hi")
        assert [seen.request.model for seen in worker.seen if seen.method == "Generate"][-1] == "sql"
    assert (await client.models.retrieve("sql")).parent == "tiny"
    with pytest.raises(Exception, match="org/other:sql"):
        await client.completions.create(model="org/other:sql", prompt="hi")


async def test_an_unknown_model_is_refused_with_the_known_names(client):
    with pytest.raises(Exception, match=r"(?s)absent.*tiny"):
        await client.completions.create(model="absent", prompt="hi")


async def test_whether_it_can_chat_is_the_workers_word(client, worker):
    worker.tell_load(ready=True)
    await client.door.ready.wait()
    assert (await client.door.described()).has_chat_template is False  # this one tells of no template


@pytest.mark.parametrize(
    ("told", "path"),
    [
        ({"task": "generate", "has_chat_template": True}, "chat/completions"),
        ({"task": "generate"}, "completions"),
        ({"task": "embed", "has_chat_template": True}, "embeddings"),
        ({}, "completions"),
    ],
)
def test_the_line_to_try_fits_the_model(told, path):
    words = invitation("it's", "[::1]:8000", pb.GetModelResponse(**told))
    assert f"curl http://[::1]:8000/v1/{path} " in words
    assert "it'\\''s" in words


def command(listener: socket.socket) -> list[str]:
    """Return the command line that `dormouse serve` writes."""
    flags = ["--listener", str(listener.fileno()), "--shown", "x:1", "--worker", "127.0.0.1", "1"]
    return [
        sys.executable,
        "-m",
        "dormouse_gateway.standalone",
        *flags,
        "--parent",
        str(os.getpid()),
        "--",
        "-odd",
        "b",
    ]


def test_names_may_look_like_flags():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        flags = parse_flags(command(listener)[3:])
        flags.listener.detach()
    assert (flags.names, flags.worker) == (("-odd", "b"), ("127.0.0.1", 1))


def test_it_ends_when_its_worker_has_ended_and_ctrl_c_alone_does_not_end_it():
    """The test stands in for the worker: it holds the pipe, and would get the SIGTERM."""
    told = []
    former = signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            door = subprocess.Popen(command(listener), stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
            for _ in range(2):
                with socket.create_connection(listener.getsockname(), WAIT_S) as caller:
                    caller.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                    assert caller.recv(12) == b"HTTP/1.1 200"
                door.send_signal(signal.SIGINT)
            door.communicate(timeout=WAIT_S)
        assert door.returncode == 0
        assert told == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, former)
