"""The whole gateway, a worker that talks, and OpenAI's own client."""

import ssl

import anthropic
import openai
import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.testing import TalkingWorker

HI = [{"role": "user", "content": "hi"}]
TOLD_APART = {
    1: [pb.AnswerPart(reasoning="Hm.")],
    2: [pb.AnswerPart(content="I look.")],
    3: [
        pb.AnswerPart(call=pb.ToolCall(index=0, name="look")),
        pb.AnswerPart(arguments=pb.ToolCallArguments(index=0, json='{"where": "out"}')),
    ],
}


@pytest.fixture
async def worker():
    """One worker."""
    made = TalkingWorker(name="talker")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def two_talkers(house):
    """Two workers of the model tiny, each of which waits after its first word."""
    made = [TalkingWorker(name=name, is_gated=True) for name in ("one", "two")]
    for each in made:
        await each.start()
    await house.add("tiny", made)
    yield made
    for each in made:
        await each.stop()


NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # whom clients trust: each would read the system's roots


def make_opener(kind, transport, path):
    """Make a fixture: a function that opens clients of `kind` to the gateway's `path`, closed with the test."""

    @pytest.fixture
    async def opener():
        made = []

        def make(house, key="none", **how):
            base = f"http://127.0.0.1:{house.ports.openai}{path}"
            plain = transport(verify=NOBODY)
            made.append(kind(api_key=key, base_url=base, max_retries=0, timeout=90, http_client=plain, **how))
            return made[-1]

        yield make
        for client in made:
            await client.close()

    return opener


open_client = make_opener(openai.AsyncOpenAI, openai.DefaultAsyncHttpxClient, "/v1")
open_anthropic = make_opener(anthropic.AsyncAnthropic, anthropic.DefaultAsyncHttpxClient, "")


@pytest.fixture
async def client(house, worker, open_client):
    """A client of a gateway that serves the model tiny."""
    await house.add("tiny", [worker])
    return open_client(house)


@pytest.fixture
async def claude(house, worker, open_anthropic):
    """A client of a gateway that serves the model tiny."""
    await house.add("tiny", [worker])
    return open_anthropic(house)
