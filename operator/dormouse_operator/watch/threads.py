"""A coroutine in a thread with a loop of its own, awaited here as if it ran here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

JOIN_S = 3.0  # for so long the end of a thread is waited for; it dies with the process


async def run_in_thread(name: str, work: Callable[[], Coroutine[Any, Any, None]], *, join_s: float = JOIN_S) -> None:
    """Run `work` until it ends; raise what it raised. Cancelling reaches it; its end is not waited for long."""
    own = asyncio.get_running_loop()
    done: asyncio.Future[None] = own.create_future()
    begun: asyncio.Future[Callable[[], object]] = own.create_future()

    async def inside() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "a coroutine runs in a task"
        own.call_soon_threadsafe(_settle, begun, lambda: loop.call_soon_threadsafe(task.cancel), None)
        await work()

    def thread() -> None:
        error: BaseException | None = None
        try:
            asyncio.run(inside())
        except asyncio.CancelledError:
            pass
        except BaseException as caught:  # noqa: BLE001  # whatever it is, it is raised where this is awaited
            error = caught
        with suppress(RuntimeError):  # the loop has closed: nobody waits any more
            own.call_soon_threadsafe(_settle, done, None, error)

    threading.Thread(target=thread, name=name, daemon=True).start()
    try:
        await asyncio.shield(done)
    finally:
        if not done.done():
            cancel = await begun
            cancel()
            await asyncio.wait({done}, timeout=join_s)


def _settle(future: asyncio.Future[Any], value: object, error: BaseException | None) -> None:
    """Give the future its end; it may be that nobody waits any more."""
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
