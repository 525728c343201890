"""What every door does first: who asks, and what does the body say?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request

from dormouse_api.limits import MAX_IMAGES_BYTES
from dormouse_gateway.clients.keys import Caller, Keyring
from dormouse_gateway.clients.requests import Metadata
from dormouse_gateway.image_room import ImageRoom
from dormouse_gateway.openai.bodies import MAX_BODY_BYTES, MAX_IMAGE_BODY_BYTES, read_bytes, told_size
from dormouse_gateway.openai.doors import Door
from dormouse_gateway.openai.fetching import ImageFetcher
from dormouse_gateway.openai.headers import to_metadata
from dormouse_gateway.openai.pictures import Pictures, is_fetched, places
from dormouse_gateway.openai.reading import read_body


class Core(Protocol):
    """What every door is opened with."""

    @property
    def keys(self) -> Keyring:
        """Return the clients' keys."""

    @property
    def images(self) -> ImageRoom:
        """Return the room for requests with images."""

    @property
    def fetcher(self) -> ImageFetcher:
        """Return who fetches images that are named by a URL."""

    @property
    def timeout_s(self) -> float:
        """Return how long a body may take."""


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came."""

    body: dict[str, Any]  # checked
    metadata: Metadata
    caller: Caller
    peer: str  # where the connection came from, host:port; "" where it has no address. Headers tell nothing of that
    pictures: Pictures  # of the body


@asynccontextmanager
async def received(door: Door, request: Request, core: Core) -> AsyncIterator[Received]:
    """Read it; a large body has its room for as long as the block lasts. Raises ApiError, CallError, ClientGone."""
    metadata = to_metadata(request.headers.raw)
    caller = core.keys.identify(metadata)  # before anything is read
    with core.images.taken(_size_beyond(request)) if door.takes_images else nullcontext():
        most = _most(request) if door.takes_images else MAX_BODY_BYTES
        body = read_body(await read_bytes(request, core.timeout_s, most), door.schema, door.refused)
        with core.images.taken(MAX_IMAGES_BYTES) if any(map(is_fetched, places(body))) else nullcontext():
            pictures = await Pictures.take(body, core.fetcher.fetch)
            yield Received(body, metadata, caller, peer_of(request), pictures)


def _size_beyond(request: Request) -> int:
    return max(0, min(told_size(request), MAX_IMAGE_BODY_BYTES) - MAX_BODY_BYTES)


def _most(request: Request) -> int:
    """Return how long the body may be: without a length beforehand there is no room for images."""
    return MAX_IMAGE_BODY_BYTES if told_size(request) else MAX_BODY_BYTES


def peer_of(request: Request) -> str:
    """Return where a request comes from, "" where nobody knows."""
    return f"{request.client.host}:{request.client.port}" if request.client else ""
