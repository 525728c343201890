"""`dormouse serve` whose words nobody reads."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import openai
import pytest

from tests.integration.serve_kit import WAIT_S, end, make_model, serving
from tests.ports import free_port
from tests.waiting import wait_for

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model that learned nothing."""
    return make_model(tmp_path_factory.mktemp("models") / "small")


def fill(pipe: int) -> None:
    """Write to a pipe until it is full. By an opening of our own: other writers shall wait as before."""
    writing = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while os.write(writing, b"\n" * 4096):
            pass
    with suppress(BlockingIOError):
        while os.write(writing, b"\n"):
            pass
    os.close(writing)


def is_served(port: int) -> bool:
    """Return whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_it_answers_while_nobody_reads_what_it_says_and_ends_with_ctrl_c(model):
    """As in `dormouse serve 2>&1 | less`: the pipe is full, each request logs a line, and the reader may come back."""
    with serving(model, "--served-model-name", "small") as served:
        client = served.client()
        assert served.process.stdout is not None
        fill(served.process.stdout.fileno())
        for _ in range(3):
            client.chat.completions.create(model="small", messages=HI, max_tokens=1)
        for _ in range(3):
            served.until_said("request ended")
        fill(served.process.stdout.fileno())
        end(served)


@pytest.mark.parametrize("closed", ["", "<&- >&- 2>&-"])
def test_it_answers_and_ends_when_nobody_ever_reads_what_it_says(model, closed):
    """As in `dormouse serve | head`: whoever read is gone; or there is nothing to write to."""
    port = free_port()
    with serving(model, "--served-model-name", "small", "--http-port", str(port), closed=closed) as served:
        assert served.process.stdout is not None
        served.process.stdout.close()
        wait_for(lambda: is_served(port), f"nobody listens on {port}")
        address = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(api_key="none", base_url=address, max_retries=0, timeout=WAIT_S) as client:
            client.chat.completions.create(model="small", messages=HI, max_tokens=1)
        end(served)
