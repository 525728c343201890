"""The end of TLS connections: at once, so that the loop of a test does not end before they have."""

from __future__ import annotations

import asyncio

import aiohttp

_ROUNDS = 3  # of the loop, until transports that were aborted have given their sockets back


async def end_connections(session: aiohttp.ClientSession | None) -> None:
    """Cut what a session still has open, without the other side's goodbye; safe if it never connected."""
    if session is None or session.connector is None:
        return
    await session.connector.close(abort_ssl=True)
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)
