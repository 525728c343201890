"""Ends what runs, or waits, under a key that is no more. Owns who runs under which key; knows no wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from dormouse_api.status import CallError
from dormouse_gateway.clients.key_files import ApiKey


@dataclass(eq=False, slots=True)
class _Stay:
    """One call that runs under a key. `why` says why it was ended."""

    key: ApiKey
    task: asyncio.Task[None]
    num_cancels: int  # of its task, before it began
    why: CallError | None = None


@dataclass(slots=True)
class Tenure:
    """All calls that run under keys."""

    _stays: set[_Stay] = field(default_factory=set)

    def __repr__(self) -> str:
        """Show how many run."""
        return f"Tenure({len(self._stays)})"

    @asynccontextmanager
    async def stay(self, key: ApiKey) -> AsyncIterator[None]:
        """Run what is within as long as the key stands. Raises CallError once it does not.

        As asyncio.timeout does it: the task is cancelled, and what that raises becomes the error here.
        """
        task = asyncio.current_task()
        assert task, "a call runs in a task"
        stay = _Stay(key, task, task.cancelling())
        self._stays.add(stay)
        try:
            yield
        except asyncio.CancelledError:
            if stay.why and task.uncancel() <= stay.num_cancels:
                raise stay.why from None
            raise
        finally:
            self._stays.discard(stay)

    def review(self, why_not: Callable[[ApiKey], CallError | None]) -> None:
        """Look at every key under which something runs; end what runs under one that must not."""
        verdicts = {key: why_not(key) for key in {stay.key for stay in self._stays}}
        for stay in self._stays:
            if stay.why is None and (why := verdicts[stay.key]):
                stay.why = why
                stay.task.cancel()
