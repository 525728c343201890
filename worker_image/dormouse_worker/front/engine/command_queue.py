"""Commands to the engine, one at a time and each to its end, whoever hangs up; a long one may shut the others out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import grpc

from dormouse_api.status import CallError

T = TypeVar("T")


class CommandQueue:
    """Owns the order of commands and the tasks that see them to their end."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Task[object]] = set()
        self._why_shut = ""  # in words, while one shuts the others out

    def __repr__(self) -> str:
        return f"CommandQueue({len(self._running)} commands)"

    def require_open(self) -> None:
        """Raise CallError FAILED_PRECONDITION while a command shuts the others out."""
        if self._why_shut:
            raise CallError(grpc.StatusCode.FAILED_PRECONDITION, f"{self._why_shut}; call again when it has ended")

    def require_none(self, what: str) -> None:
        """Raise CallError FAILED_PRECONDITION while any command runs."""
        self.require_open()
        if self._running:
            raise CallError(grpc.StatusCode.FAILED_PRECONDITION, f"{what} has to wait: another command is under way")

    async def run(self, command: Callable[[], Awaitable[T]]) -> T:
        """Run a command in a task of its own: a caller that hangs up must not leave it half watched."""
        return await asyncio.shield(self.start(command))

    def start(self, command: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """Run a command that nobody need wait for; what it raises is lost then. Raises CallError while shut out."""
        self.require_open()

        async def in_turn() -> T:
            async with self._turn:
                return await command()

        task = asyncio.create_task(in_turn())
        self._running.add(task)
        task.add_done_callback(self._forget)
        return task

    def start_alone(self, why: str, command: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """Run a command and refuse all others until it ends. Only after `require_none`."""
        return self._shut_for(why, self.start(command))

    def start_ahead(self, why: str, command: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Run what ends the commands under way, without waiting for them; refuse all others until it ends.

        Raises CallError while shut out.
        """
        self.require_open()
        return self._shut_for(why, asyncio.create_task(command()))

    def _shut_for(self, why: str, task: asyncio.Task[T]) -> asyncio.Task[T]:
        def open_again(_: asyncio.Task[T]) -> None:
            self._why_shut = ""

        self._why_shut = why
        task.add_done_callback(open_again)
        return task

    def _forget(self, task: asyncio.Task[T]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: nobody may be waiting any more
