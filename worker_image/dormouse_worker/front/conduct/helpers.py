"""The processes beside the front that render, compile and decode: there before somebody needs them, and not in STANDBY.

A worker in STANDBY may wait for days, and such a process has 20 MiB of its own.
"""

from __future__ import annotations

import asyncio

from dormouse_worker.common.ipc import State
from dormouse_worker.front.worker import Worker


class Helpers:
    """Owns the task that starts what the first request may need."""

    def __init__(self, worker: Worker, *, starts_ahead: bool) -> None:
        """Without `starts_ahead` each is started by who needs it first."""
        self._worker = worker
        self._starts_ahead = starts_ahead
        self._starting: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Helpers({'starting' if self._starting and not self._starting.done() else 'settled'})"

    def follow(self, state: State) -> None:
        """Start or end what goes with a state that the worker came to."""
        if state is State.STANDBY:
            self._worker.served.rest()
        elif state is State.READY and self._starts_ahead and (self._starting is None or self._starting.done()):
            self._starting = asyncio.create_task(self._worker.served.warm(self._worker.board.engine))

    async def close(self) -> None:
        """Start nothing any more."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
