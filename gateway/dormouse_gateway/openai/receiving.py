"""What every door does first: who asks, and what does the body say?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from dormouse_gateway.clients.keys import Caller, Keyring
from dormouse_gateway.clients.requests import Metadata
from dormouse_gateway.openai.bodies import read_bytes
from dormouse_gateway.openai.doors import Door
from dormouse_gateway.openai.headers import to_metadata
from dormouse_gateway.openai.reading import read_body


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came."""

    body: dict[str, Any]  # checked
    metadata: Metadata
    caller: Caller
    peer: str  # where the connection came from, host:port; "" where it has no address. Headers tell nothing of that


async def receive(door: Door, request: Request, keys: Keyring, timeout_s: float) -> Received:
    """Read it. Raises ApiError, CallError, ClientGone."""
    metadata = to_metadata(request.headers.raw)
    caller = keys.identify(metadata)  # before anything is read
    body = read_body(await read_bytes(request, timeout_s), door.schema, door.refused)
    return Received(body, metadata, caller, _peer_of(request))


def _peer_of(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client else ""
