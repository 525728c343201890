"""A real worker that makes vectors behind the door of `dormouse serve`: the same vectors over every sleep."""

from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import openai
import pytest

from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.model.testing_pooling import write_tiny_encoder
from tests.integration.test_sleep import sleep, wake

WAIT_S = 110
READY, ASLEEP, STANDBY = (getattr(control, f"WORKER_STATE_{state}") for state in ("READY", "ASLEEP", "STANDBY"))
FLAGS = ("--max-model-len", "64", "--max-num-batched-tokens", "128")
TEXTS = ["nut", "a nest of hazel", "winter " * 6]


@pytest.fixture(scope="module")
def embedder(start_worker, tmp_path_factory):
    """A worker with an encoder of random weights."""
    worker = start_worker(write_tiny_encoder(tmp_path_factory.mktemp("random")), *FLAGS)
    assert worker.report().num_gpu_blocks == 0
    agree(worker)
    return worker


@contextmanager
def open_door(worker):
    """Yield the address of the door that `dormouse serve` opens for a worker, a process of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    flags = ["--listener", str(listener.fileno()), "--shown", address, "--parent", "0"]
    command = [sys.executable, "-m", "dormouse_gateway.standalone", *flags]
    command += ["--worker", "127.0.0.1", str(worker.port), "--", "tiny"]
    door = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[listener.fileno()])
    listener.close()
    assert b"ready" in door.stdout.readline()
    try:
        yield f"http://{address}"
    finally:
        door.communicate(timeout=WAIT_S)  # its input closes, and so it ends


@pytest.fixture(scope="module")
def client(embedder):
    """OpenAI's client of the door."""
    with (
        open_door(embedder) as address,
        openai.OpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0, timeout=WAIT_S) as made,
    ):
        yield made


def agree(worker):
    """Allocate what there is to allocate: no block."""
    request = control.InitializeCacheRequest(epoch=1, num_gpu_blocks=0)
    assert worker.operate("InitializeCache", request).state == READY


def vectors(client):
    return [one.embedding for one in client.embeddings.create(model="tiny", input=TEXTS).data]


@pytest.mark.parametrize(("level", "state"), [(1, ASLEEP), (2, ASLEEP), (3, STANDBY)])
def test_a_call_that_comes_during_a_sleep_waits_and_gets_the_vectors_of_before(embedder, client, level, state):
    before = vectors(client)
    assert sleep(embedder, level).state == state
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(vectors, client)
        woken = wake(embedder)
        if level == 3:
            assert embedder.report().num_gpu_blocks == 0
            agree(embedder)
        else:
            assert woken.state == READY
        assert held.result(WAIT_S) == before
    assert vectors(client) == before


def test_text_is_not_for_it(embedder, client):
    with pytest.raises(grpc.RpcError) as caught:
        embedder.greedy([1, 2, 3], 4)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    words = "the model's task is embed, which Generate does not do; call Embed (/v1/embeddings)"
    assert caught.value.details() == words
    with pytest.raises(openai.BadRequestError, match=r"call Embed \(/v1/embeddings\)"):
        client.completions.create(model="tiny", prompt="a")
