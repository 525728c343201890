"""Commands to the engine, one at a time and each to its end, whoever hangs up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """Owns the order of commands and the tasks that see them to their end."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Task[object]] = set()

    def __repr__(self) -> str:
        return f"Turns({len(self._running)} commands)"

    async def run(self, command: Callable[[], Awaitable[T]]) -> T:
        """Run a command in a task of its own: a caller that hangs up must not leave it half watched."""
        return await asyncio.shield(self.start(command))

    def start(self, command: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """Run a command that nobody need wait for; what it raises is lost then."""

        async def in_turn() -> T:
            async with self._turn:
                return await command()

        task = asyncio.create_task(in_turn())
        self._running.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[T]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: nobody may be waiting any more
