"""Reads a request's body within its limits of size and time, and notices a client that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from dormouse_gateway.openai.errors import ApiError, too_large

MAX_BODY_BYTES = 2 << 20  # JSON needs more than the message that it becomes, which has a limit of its own
_JSON = "application/json"

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody waits for the answer."""


async def read_bytes(request: Request, timeout_s: float) -> bytes:
    """Return the body. Raises ApiError for what is no JSON, too large or too slow; ClientGone."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
        raise ApiError(415, f"content-type is {request.headers.get('content-type')!r}; allowed: {_JSON}")
    _check_size(int(request.headers.get("content-length", 0)))  # h11 let only digits pass
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                body += chunk
                _check_size(len(body))
    except TimeoutError as error:
        raise ApiError(408, f"the body did not come within {timeout_s:g} seconds", code="timeout") from error
    except ClientDisconnect as error:
        raise ClientGone from error
    return bytes(body)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work; stop as soon as the client goes away. Raises ClientGone. The body must have been read."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_until_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait({task, gone})


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise too_large(f"the body has {size} bytes or more", MAX_BODY_BYTES)
