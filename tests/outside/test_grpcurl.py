"""grpcurl against the gateway's gRPC door, as a person at a terminal: no .proto file, a key, JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.gateway_process import GatewayProcess
from tests.faults.town import Town
from tests.integration.conftest import Worker
from tests.outside.clients.asking import MANY_TOKENS, NUM_TOKENS, QUESTION
from tests.outside.visited import KEY, asked_directly, is_idle, num_generated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

GENERATE = "dormouse.v1.Inference/Generate"
CODE_BASE = 64  # grpcurl exits with this and the status' number
REFUSED = {
    "unknown model": ({"model": "unknown"}, KEY, 5, "NotFound", "known models: tiny"),
    "wrong key": ({}, "wrong", 16, "Unauthenticated", "the API key is not known"),
    "wrong parameter": ({"sampling_params": {"top_p": 7}}, KEY, 3, "InvalidArgument", "sampling_params.top_p is 7"),
    "unknown field": ({"modell": "tiny"}, KEY, None, "", "modell"),
}


class Grpcurl:
    """The program, with the gateway's address."""

    def __init__(self, program: Path, gateway: GatewayProcess) -> None:
        self._program = str(program)
        self._address = f"127.0.0.1:{gateway.port}"

    async def start(self, *words: str, key: str = KEY, body: Any = None) -> asyncio.subprocess.Process:
        """Start it."""
        data = [] if body is None else ["-d", json.dumps(body)]
        flags: Sequence[str] = ["-plaintext", "-H", f"authorization: Bearer {key}", *data, self._address, *words]
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(self._program, *flags, stdout=pipe, stderr=pipe)

    async def run(self, *words: str, **how: Any) -> tuple[int | None, str, str]:
        """Return its exit code, what it said and what it complained of."""
        process = await self.start(*words, **how)
        said, complained = await process.communicate()
        return process.returncode, said.decode(), complained.decode()

    async def messages(self, **sampling: Any) -> list[Any]:
        """Return the messages of an answer."""
        code, said, complained = await self.run(GENERATE, body=question(**sampling))
        assert code == 0, complained
        return json.loads(f"[{said.replace(chr(10) + '}' + chr(10) + '{', '},{')}]")


def question(**sampling: Any) -> dict[str, Any]:
    """Return the request as JSON."""
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": "tiny", "chat": {"messages": messages}, "sampling_params": {"temperature": 0, **sampling}}


@pytest.fixture
def grpcurl(binaries: Path, gateway: GatewayProcess) -> Grpcurl:
    """The program of localkube."""
    return Grpcurl(binaries / "grpcurl", gateway)


async def test_grpcurl_streams_what_the_worker_says_and_describes_the_service(grpcurl: Grpcurl, worker: Worker) -> None:
    expected = await asyncio.to_thread(asked_directly, worker)
    messages = await grpcurl.messages(max_tokens=NUM_TOKENS, logprobs=0)
    assert "".join(message.get("text", "") for message in messages) == expected.text
    logprobs = [place["sampled"]["logprob"] for message in messages for place in message.get("logprobs", ())]
    assert logprobs == pytest.approx(expected.logprobs)
    usage = messages[-1]["usage"]
    assert [usage["prompt_tokens"], usage["completion_tokens"]] == expected.usage
    assert messages[-1]["finish_reason"] == "FINISH_REASON_LENGTH"
    stop = expected.text.split()[-1]
    stopped = await grpcurl.messages(max_tokens=NUM_TOKENS, stop=[stop])
    assert stopped[-1]["matched_stop"] == stop
    _, services, _ = await grpcurl.run("list")
    assert "dormouse.v1.Inference" in services.split()
    _, described, _ = await grpcurl.run("describe", "dormouse.v1.SamplingParams")
    assert "max_tokens" in described


@pytest.mark.parametrize("refusal", REFUSED)
async def test_grpcurl_shows_a_refusal_with_its_code_and_our_words(refusal: str, grpcurl: Grpcurl) -> None:
    wrong, key, number, name, words = REFUSED[refusal]
    code, said, complained = await grpcurl.run(GENERATE, key=key, body=question() | wrong)
    assert code == (1 if number is None else CODE_BASE + number), complained
    assert said == ""
    assert name in complained
    assert words in complained


async def test_whoever_ends_grpcurl_in_mid_stream_frees_the_worker(
    grpcurl: Grpcurl, worker: Worker, town: Town
) -> None:
    before = await num_generated(worker)
    process = await grpcurl.start(GENERATE, body=question(max_tokens=MANY_TOKENS, ignore_eos=True))
    assert process.stdout
    await process.stdout.readuntil(b'"text"')
    process.kill()
    await process.communicate()
    await town.eventually(lambda: is_idle(worker))
    assert await num_generated(worker) - before < MANY_TOKENS
