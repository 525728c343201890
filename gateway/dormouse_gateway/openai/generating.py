"""One request for text, from its body to its response, at whichever door."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from dormouse_api.status import CallError
from dormouse_gateway.clients.keys import Keyring
from dormouse_gateway.clients.requests import Metadata
from dormouse_gateway.image_room import ImageRoom
from dormouse_gateway.openai.answers import OURS, Answer, Form, as_events, in_one_piece
from dormouse_gateway.openai.bodies import unless_gone
from dormouse_gateway.openai.calls import LocalCall, Serve
from dormouse_gateway.openai.doors import TextDoor
from dormouse_gateway.openai.errors import from_call_error
from dormouse_gateway.openai.fetching import ImageFetcher
from dormouse_gateway.openai.many import ManyCalls
from dormouse_gateway.openai.receiving import received
from dormouse_gateway.openai.standing import telling
from dormouse_gateway.openai.texts import WorkerTexts
from dormouse_gateway.openai.wish import Wish

EVENTS = "text/event-stream; charset=utf-8"
NOT_KEPT = {"cache-control": "no-store", "x-accel-buffering": "no"}  # proxies must pass events on at once

Running = LocalCall | ManyCalls


@dataclass(frozen=True, slots=True)
class Generating:
    """What requests for text have in common: the core, the keys, the times."""

    serve: Serve
    keys: Keyring
    timeout_s: float
    waiting_s: float  # between two comments to a client that waits for its first event
    images: ImageRoom = field(default_factory=ImageRoom)
    fetcher: ImageFetcher = field(default_factory=ImageFetcher)
    now: Callable[[], float] = time.time

    async def respond(self, door: TextDoor, request: Request, request_id: str) -> Response:
        """Answer. Raises ApiError, ClientGone."""
        async with received(door, request, self) as came:
            body, metadata, caller, peer = came.body, came.metadata, came.caller, came.peer
            wish = door.to_wish(body, request_id)
            came.pictures.clear()
        answer = Answer(wish, WorkerTexts(self.serve, wish.model, metadata, caller, peer))
        form = door.form(body, wish, request_id, self.now())
        told: dict[str, str] = {}
        async with AsyncExitStack() as opened:
            try:
                call = await self._open(opened, wish, metadata, peer, told)
                if not wish.is_stream:
                    return await unless_gone(request, _whole(call, answer, form, told))
                first = await unless_gone(request, _first(call, self.waiting_s))
            except CallError as error:
                raise door.named(from_call_error(error).with_headers(told), body) from error
            events = as_events(call, answer, form, first, waiting_s=self.waiting_s)
            return StreamingResponse(
                closing(opened.pop_all(), events), media_type=EVENTS, headers=told | _said(call) | NOT_KEPT
            )

    async def _open(
        self, opened: AsyncExitStack, wish: Wish, metadata: Metadata, peer: str, told: dict[str, str]
    ) -> Running:
        """Begin; several prompts of one body run as one request, and count as many. Raises CallError.

        Where the key stands is told once the request was let in.
        """
        admit = telling(self.keys, told, num_requests=len(wish.prompts))
        if len(wish.prompts) == 1:
            return await opened.enter_async_context(LocalCall(self.serve, wish.prompts[0], metadata, admit, peer=peer))
        caller = await opened.enter_async_context(admit(metadata))
        calls = [
            LocalCall(self.serve, prompt, metadata, lambda _: nullcontext(caller), peer=peer) for prompt in wish.prompts
        ]
        return await opened.enter_async_context(ManyCalls(calls, wish.num_choices))


async def _whole(call: Running, answer: Answer, form: Form, told: dict[str, str]) -> Response:
    return JSONResponse(await in_one_piece(call, answer, form), headers=told | _said(call))


async def _first(call: Running, waiting_s: float) -> bytes | None:
    """Return the first message; None if there is time until it comes."""
    reading, progress = asyncio.create_task(call.read()), asyncio.create_task(call.progressed.wait())
    try:
        await asyncio.wait({reading, progress}, timeout=waiting_s, return_when=asyncio.FIRST_COMPLETED)
        return reading.result() if reading.done() else None
    finally:
        for task in (reading, progress):
            task.cancel()
        await asyncio.wait({reading, progress})


async def closing(opened: AsyncExitStack, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass the events on; however that ends, the worker learns it."""
    async with opened:
        async for event in events:
            yield event


def _said(call: Running) -> dict[str, str]:
    return {key: value for key, value in call.said.items() if key.startswith(OURS)}
