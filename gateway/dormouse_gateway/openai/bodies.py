"""Reads a request's body within its limits of size and time, and notices a client that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from dormouse_api.limits import MAX_IMAGES_BYTES
from dormouse_gateway.openai.errors import ApiError, too_large

MAX_BODY_BYTES = 2 << 20  # JSON needs more than the message that it becomes, which has a limit of its own
MAX_IMAGE_BODY_BYTES = MAX_BODY_BYTES + MAX_IMAGES_BYTES // 3 * 4
MAX_VALUES = MAX_BODY_BYTES // 2  # of a larger body: as many as a body without images can have; base64 is none
_JSON = "application/json"

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody waits for the answer."""


def check_type(content_type: str | None) -> None:
    """Raise ApiError for what is said to be no JSON."""
    if (content_type or "").partition(";")[0].strip().lower() != _JSON:
        raise ApiError(415, f"content-type is {content_type!r}; allowed: {_JSON}")


async def read_bytes(request: Request, timeout_s: float, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return the body. Raises ApiError for what is no JSON, too large or too slow; ClientGone."""
    check_type(request.headers.get("content-type"))
    body = await read_whole(request, timeout_s, max_bytes)
    if len(body) > MAX_BODY_BYTES:
        _check_values(body)
    return body


async def read_whole(request: Request, timeout_s: float, max_bytes: int) -> bytes:
    """Return the body, of whatever type. Raises ApiError for one too large or too slow; ClientGone."""
    _check_size(told_size(request), max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                body += chunk
                _check_size(len(body), max_bytes)
    except TimeoutError as error:
        raise ApiError(408, f"the body did not come within {timeout_s:g} seconds", code="timeout") from error
    except ClientDisconnect as error:
        raise ClientGone from error
    return bytes(body)


def told_size(request: Request) -> int:
    """Return how long the body is to be, 0 if that is not told."""
    return int(request.headers.get("content-length", 0))  # h11 let only digits pass


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


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise too_large(f"the body has {size} bytes or more", max_bytes)


def _check_values(body: bytes) -> None:
    """Refuse what costs far more memory parsed than it has bytes, before it is parsed."""
    num_values = sum(map(body.count, (b",", b"[", b"{")))
    if num_values > MAX_VALUES:
        raise too_large(f"the body has {num_values} values and more than {MAX_BODY_BYTES} bytes", MAX_BODY_BYTES)
