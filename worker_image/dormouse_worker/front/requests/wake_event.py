"""Wakes a task that waits. Knows nothing of what it is told."""

from __future__ import annotations

import asyncio


class WakeEvent:
    """Heard by one task: at once if it rang since that task heard it last. Needs a running loop.

    Less work than an `asyncio.Event`, which looks for its loop and through its waiters each time: this one is rung and
    heard with every message of every stream.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung: asyncio.Future[None] = self._loop.create_future()

    def __repr__(self) -> str:
        return f"WakeEvent(rung={self._rung.done()})"

    def ring(self) -> None:
        """Wake who waits, or who waits next."""
        if not self._rung.done():
            self._rung.set_result(None)

    async def heard(self) -> None:
        """Wait until it rings. Not after a wait that was cancelled: who waited has left."""
        await self._rung
        self._rung = self._loop.create_future()
