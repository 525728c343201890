"""vLLM's server as its clients ask it: `/v1/completions` over HTTP, streamed.

Its client stands where `AsyncClient` stands for ours. Prompts are token ids, and each message
brings text and token ids, as ours does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import aiohttp
import grpc
import msgspec

from bench.vllm_server import NAME
from dormouse_api.client import ClientError
from dormouse_api.v1 import inference_pb2 as pb

PREFIX = b"data: "
LAST = b"[DONE]"
HEADERS = {"Content-Type": "application/json"}


class Choice(msgspec.Struct, frozen=True):
    """New tokens of the answer."""

    token_ids: list[int] | None = None


class Usage(msgspec.Struct, frozen=True):
    """What the whole request took."""

    prompt_tokens: int
    completion_tokens: int


class Fault(msgspec.Struct, frozen=True):
    """Why there is no answer."""

    message: str


class Event(msgspec.Struct, frozen=True):
    """One message of the stream; what else it holds is not read."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Fault | None = None


class Events:
    """Cuts a stream of bytes into the payloads of its events."""

    def __init__(self) -> None:
        self._rest = b""

    def __repr__(self) -> str:
        return f"Events({len(self._rest)} bytes of the next)"

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that are complete now; the mark of the stream's end is none."""
        *whole, self._rest = (self._rest + data).split(b"\n\n")
        payloads = (event.removeprefix(PREFIX) for event in whole if event.startswith(PREFIX))
        return [payload for payload in payloads if payload != LAST]


def to_body(request: pb.GenerateRequest) -> bytes:
    """Return our request as vLLM's server takes it."""
    params = request.sampling_params
    body = {
        "model": NAME,
        "prompt": list(request.token_ids.ids),
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "ignore_eos": params.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    return msgspec.json.encode(body)


def to_response(payload: bytes) -> pb.GenerateResponse:
    """Return an event as our own message. Raises ClientError for an error that comes in the stream's middle."""
    event = msgspec.json.decode(payload, type=Event)
    if event.error is not None:
        raise ClientError(event.error.message, code=grpc.StatusCode.INTERNAL)
    response = pb.GenerateResponse(token_ids=[one for choice in event.choices for one in choice.token_ids or ()])
    if event.usage is not None:
        response.usage.prompt_tokens = event.usage.prompt_tokens
        response.usage.completion_tokens = event.usage.completion_tokens
    return response


class VllmClient:
    """Implements `dormouse_cli.load.drive.Client`. The session is its maker's."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}/v1/completions"

    def __repr__(self) -> str:
        return f"VllmClient({self._url})"

    async def generate(self, request: pb.GenerateRequest) -> AsyncGenerator[pb.GenerateResponse, None]:
        """See `Client`."""
        events = Events()
        try:
            async with self._session.post(self._url, data=to_body(request), headers=HEADERS) as answer:
                if answer.status != 200:
                    raise ClientError(f"{answer.status}: {await answer.text()}", code=grpc.StatusCode.UNKNOWN)
                async for data in answer.content.iter_any():
                    for payload in events.feed(data):
                        yield to_response(payload)
        except aiohttp.ClientError as error:
            raise ClientError(str(error), code=grpc.StatusCode.UNAVAILABLE) from error
