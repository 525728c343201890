"""Libraries that people use against servers of OpenAI's API: a real gateway with keys, a real worker behind it.

Each library has a program under `clients/`, written as its users write one; it asks everything and says what it saw.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults.gateway_process import GatewayProcess
from tests.faults.programs import clean_environment
from tests.faults.town import Town
from tests.integration.conftest import Worker
from tests.outside import client_env
from tests.outside.clients.asking import MANY_TOKENS
from tests.outside.visited import KEY, Said, asked_directly, is_idle, num_generated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LOG_LINE_BYTES = 1 << 20
OPENAIS = {"unknown model": "NotFoundError", "wrong key": "AuthenticationError", "wrong parameter": "BadRequestError"}


@dataclass(frozen=True, slots=True)
class Library:
    """A client library and what it can show."""

    program: str
    errors: Any  # refusal → the exception's kind, or one kind for all
    has_models: bool = False
    has_logprobs: bool = False
    python: str | None = None  # None: the clients' environment

    def __str__(self) -> str:
        """Return the test's name for it."""
        return (
            Path(self.program).stem.removeprefix("with_") + Path(self.program).suffix + ("-latest" * bool(self.python))
        )

    def kind_of(self, refusal: str) -> str:
        """Return which exception a refusal becomes."""
        return self.errors if isinstance(self.errors, str) else self.errors[refusal.split(",", maxsplit=1)[0]]


LIBRARIES = (
    Library("with_openai.py", OPENAIS, has_models=True, has_logprobs=True),
    Library("with_openai.py", OPENAIS, has_models=True, has_logprobs=True, python=sys.executable),
    Library("with_openai.mjs", OPENAIS, has_models=True, has_logprobs=True),
    Library("with_ai_sdk.mjs", "APICallError"),
    Library("with_curl.py", "Refused", has_models=True, has_logprobs=True),
    Library("with_langchain.py", OPENAIS, has_logprobs=True),
    Library("with_litellm.py", OPENAIS, has_models=True, has_logprobs=True),
    Library("with_llama_index.py", OPENAIS),
    Library("with_pydantic_ai.py", "ModelHTTPError"),
)
WORDS = {
    "unknown model": "no model is called 'unknown'; known models: tiny",
    "wrong key": "the API key is not known",
    "wrong parameter": "allowed: above 0 to 1",
}


@asynccontextmanager
async def running(
    library: Library, gateway: GatewayProcess, tmp_path: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a library's program while the block runs."""
    command = client_env.command(library.program, tmp_path, library.python)
    env = clean_environment(LITELLM_LOCAL_MODEL_COST_MAP="True", PYTHONWARNINGS="ignore") | {"PYTHONPATH": ""}
    with (tmp_path / "program.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            f"http://127.0.0.1:{gateway.http_port}/v1",
            KEY,
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            limit=LOG_LINE_BYTES,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def line_of(process: asyncio.subprocess.Process, log: Path) -> str:
    """Return the program's next line. Raises AssertionError with its complaints if it has none."""
    assert process.stdout
    line = await process.stdout.readline()
    assert line, await asyncio.to_thread(log.read_text, "utf-8", "replace")
    return line.decode().strip()


@pytest.mark.parametrize("library", LIBRARIES, ids=str)
async def test_a_client_library_gets_answers_streams_and_errors_and_may_leave(
    library: Library, gateway: GatewayProcess, worker: Worker, town: Town, tmp_path: Path
) -> None:
    expected = await asyncio.to_thread(asked_directly, worker)
    async with running(library, gateway, tmp_path) as process:
        check(library, json.loads(await line_of(process, tmp_path / "program.log")), expected)
        before = await num_generated(worker)
        assert await line_of(process, tmp_path / "program.log") == "left"
        await town.eventually(lambda: is_idle(worker))
        assert process.returncode is None, "it was the stream that ended, not the program"
        assert await num_generated(worker) - before < MANY_TOKENS, "it got the first words before the last, and left"


def check(library: Library, told: Any, expected: Said) -> None:
    """Compare what a program saw with what the worker says, and with what the library promises."""
    whole, streamed, stopped = told["whole"], told["streamed"], told["stopped"]
    assert whole["text"] == streamed["text"] == expected.text
    assert (whole["finish"], streamed["finish"], stopped["finish"]) == ("length", "length", "stop")
    assert whole["usage"] == expected.usage
    assert streamed["usage"] in (expected.usage, None)
    assert stopped["text"] == expected.text[: expected.text.index(told["stop"])]
    if library.has_logprobs:
        assert whole["logprobs"] == pytest.approx(expected.logprobs)
        assert streamed["logprobs"] in (None, pytest.approx(expected.logprobs))
    assert told["models"] == (["tiny"] if library.has_models else None)
    for refusal, (*kinds, words) in told["refused"].items():
        assert library.kind_of(refusal) in kinds, told["refused"]
        assert WORDS[refusal.split(",")[0]] in words


def test_every_program_is_tried() -> None:
    programs = {path.name for path in client_env.PROGRAMS.glob("with_*")}
    assert programs == {library.program for library in LIBRARIES}
    assert shutil.which("curl"), "with_curl.py needs it"
