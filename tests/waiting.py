"""Waiting for what tells nobody of its changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 150.0
LOOK_S = 0.002
LOOK_AT_PROCESSES_S = 0.01  # who looks all the time takes the processor from what he waits for


async def until(holds: Callable[[], object]) -> None:
    """Give way to others until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  # what is waited for has no event of its own
            await asyncio.sleep(LOOK_S)


def wait_for(look: Callable[[], T], missing: str | Callable[[], str]) -> T:
    """Return the first thing seen that is true, for what processes do. Raises TimeoutError that says what lacks."""
    end_s = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > end_s:
            raise TimeoutError(missing if isinstance(missing, str) else missing())
        time.sleep(LOOK_AT_PROCESSES_S)
    return found
