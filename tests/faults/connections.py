"""The end of TLS connections: at once, so that the loop of a test does not end before they have."""

from __future__ import annotations

import asyncio

import aiohttp

_ROUNDS = 3  # of the loop, until transports that were aborted have given their sockets back


async def end_connections(session: aiohttp.ClientSession | None) -> None:
    """Cut what a session still has open, without the other side's goodbye; safe if it never connected.

    What a cancelled request or watch has left is no longer the session's and waits for that goodbye: the loop knows it.
    """
    if session is not None and session.connector is not None:
        await session.connector.close(abort_ssl=True)
    left = getattr(asyncio.get_running_loop(), "_transports", {})  # by file descriptor; of loops that select
    for transport in list(left.values()):
        transport.abort()
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)
