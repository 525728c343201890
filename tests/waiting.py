"""Waiting for what tells nobody of its changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE_S = 150.0
LOOK_S = 0.002


async def until(holds: Callable[[], object]) -> None:
    """Give way to others until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  # what is waited for has no event of its own
            await asyncio.sleep(LOOK_S)
