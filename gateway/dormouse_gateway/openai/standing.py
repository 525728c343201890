"""Where a key stands with its limits, brought from those who let requests in to the headers of responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from dormouse_gateway.clients.counting import LimitReached
from dormouse_gateway.clients.keys import Caller, Keyring


def telling(
    keys: Keyring, told: dict[str, str], *, num_requests: int = 1
) -> Callable[[Any], AbstractAsyncContextManager[Caller]]:
    """Return what lets a request in as `keys.admit` does, and fills `told` with headers, also where it refuses."""

    @asynccontextmanager
    async def admit(metadata: Any) -> AsyncIterator[Caller]:
        try:
            async with keys.admit(metadata, num_requests=num_requests) as caller:
                told.update(caller.headers)
                yield caller
        except LimitReached as error:
            told.update(error.headers)
            raise

    return admit
