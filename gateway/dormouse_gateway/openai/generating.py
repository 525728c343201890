"""One request for text, from its body to its response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from dormouse_gateway.clients.keys import Keyring
from dormouse_gateway.openai.answers import OURS, Answer, Prompt, as_events, in_one_piece
from dormouse_gateway.openai.bodies import read_bytes, unless_gone
from dormouse_gateway.openai.calls import LocalCall, Serve
from dormouse_gateway.openai.checking import Schema
from dormouse_gateway.openai.headers import to_metadata
from dormouse_gateway.openai.mapping import Body, Wish, to_chat, to_completion
from dormouse_gateway.openai.reading import read_body
from dormouse_gateway.openai.schemas import CHAT_REQUEST, COMPLETION_REQUEST
from dormouse_gateway.openai.shapes import CHAT, COMPLETION, Head, Shape
from dormouse_gateway.openai.texts import WorkerTexts

_EVENTS = "text/event-stream; charset=utf-8"
_NOT_KEPT = {"cache-control": "no-store", "x-accel-buffering": "no"}  # proxies must pass events on at once


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the two ways to ask for text."""

    schema: Schema
    to_wish: Callable[[Body, str], Wish]
    shape: Shape


CHAT_KIND = Kind(CHAT_REQUEST, to_chat, CHAT)
COMPLETION_KIND = Kind(COMPLETION_REQUEST, to_completion, COMPLETION)


@dataclass(frozen=True, slots=True)
class Generating:
    """What requests for text have in common: the core, the keys, the times."""

    serve: Serve
    keys: Keyring
    timeout_s: float
    waiting_s: float  # between two comments to a client that waits for its first event
    now: Callable[[], float] = time.time

    async def respond(self, kind: Kind, request: Request, request_id: str) -> Response:
        """Answer. Raises ApiError, CallError, ClientGone."""
        metadata = to_metadata(request.headers.raw)
        caller = self.keys.identify(metadata)  # before anything is read
        body = read_body(await read_bytes(request, self.timeout_s), kind.schema)
        wish = kind.to_wish(body, request_id)
        peer = peer_of(request)
        texts = WorkerTexts(self.serve, wish.request.model, metadata, caller, peer)
        head = Head(kind.shape, request_id, wish.request.model, int(self.now()))
        call = LocalCall(self.serve, wish.request, metadata, peer=peer)
        answer = Answer(wish, texts)
        if wish.is_stream:
            return await self._stream(request, call, answer, head)
        return await unless_gone(request, _whole(call, answer, head, texts))

    async def _stream(self, request: Request, call: LocalCall, answer: Answer, head: Head) -> Response:
        """Wait for the first message, so that a refusal gets its status; if it takes long, begin without it."""
        await call.__aenter__()
        try:
            first = await unless_gone(request, _first(call, self.waiting_s))
        except BaseException:
            await call.__aexit__(None, None, None)
            raise
        return StreamingResponse(
            _closing(call, as_events(call, answer, head, first, waiting_s=self.waiting_s)),
            media_type=_EVENTS,
            headers=_said(call) | _NOT_KEPT,
        )


def peer_of(request: Request) -> str:
    """Return where the connection came from, host:port; "" where it has no address. Headers tell nothing of that."""
    return f"{request.client.host}:{request.client.port}" if request.client else ""


async def _whole(call: LocalCall, answer: Answer, head: Head, texts: WorkerTexts) -> Response:
    prompt = await _prompt(answer.wish, texts) if answer.wish.echo else None
    async with call:
        return JSONResponse(await in_one_piece(call, answer, head, prompt), headers=_said(call))


async def _prompt(wish: Wish, texts: WorkerTexts) -> Prompt:
    """Return what is echoed. With log-probabilities the prompt is sent as the tokens that they are told of."""
    request = wish.request
    if not wish.with_logprobs:
        return Prompt(request.text or await texts.joined(request.token_ids.ids))
    if request.text:
        text = request.text
        request.token_ids.ids.extend(await texts.token_ids(text))
    else:
        text = await texts.joined(request.token_ids.ids)
    return Prompt(text, first_token_id=request.token_ids.ids[0])


async def _first(call: LocalCall, waiting_s: float) -> bytes | None:
    """Return the first message; None if there is time until it comes."""
    reading, progress = asyncio.create_task(call.read()), asyncio.create_task(call.progressed.wait())
    try:
        await asyncio.wait({reading, progress}, timeout=waiting_s, return_when=asyncio.FIRST_COMPLETED)
        return reading.result() if reading.done() else None
    finally:
        for task in (reading, progress):
            task.cancel()
        await asyncio.wait({reading, progress})


async def _closing(call: LocalCall, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass the events on; however that ends, the worker learns it."""
    try:
        async for event in events:
            yield event
    finally:
        await call.__aexit__(None, None, None)


def _said(call: LocalCall) -> dict[str, str]:
    return {key: value for key, value in call.said.items() if key.startswith(OURS)}
