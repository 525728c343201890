"""Some processes for the same work, and whose turn it is: a caller has one of them at most."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dormouse_worker.front.text.bounded_process import ENDED, BoundedProcess, Job
from dormouse_worker.front.text.turns import Rota, Turn

MAX_PROCESSES = 2

T = TypeVar("T")


class ProcessPool:
    """Owns the processes, and who has which."""

    def __init__(self, job: Job, setup: Mapping[str, Any]) -> None:
        """Start nothing yet."""
        self._job = job
        self._threads = ThreadPoolExecutor(MAX_PROCESSES, thread_name_prefix=job.program.rpartition(".")[2])
        self._processes = [BoundedProcess(job, setup) for _ in range(MAX_PROCESSES)]
        self._idle = list(self._processes)  # the last one was used last: it runs
        self._waiting: Rota[tuple[str, Turn]] = Rota()
        self._busy: set[str] = set()  # callers whose order is being carried out
        self._is_closed = False

    def __repr__(self) -> str:
        return f"{len(self._busy)} at work, {self._waiting!r}"

    async def warm(self) -> None:
        """Start a process before it is needed. What is wrong with the setup is told when it is needed."""
        if len(self._idle) == MAX_PROCESSES:
            with contextlib.suppress(self._job.refusal):
                await self.run("", BoundedProcess.start)

    def rest(self) -> None:
        """End the processes that do nothing now; who needs one starts it again."""
        for process in self._idle:
            process.end()

    def close(self) -> None:
        """End all processes; orders that are being carried out, or wait for it, are refused."""
        self._is_closed = True
        for process in self._processes:
            process.close()
        for process in self._idle:
            process.end()
        self._threads.shutdown(wait=False)

    async def run(self, caller: str, work: Callable[[BoundedProcess], T]) -> T:
        """Return what the work returns, done in a thread with a process when the turn has come. Raises the refusal.

        Who stops waiting does not stop the process: its time is limited, and so is each caller's share.
        """
        await self._turn(caller)
        if self._is_closed:
            self._busy.discard(caller)
            self._give()
            raise self._job.refusal(ENDED)
        process = self._idle.pop()
        running = asyncio.get_running_loop().run_in_executor(self._threads, work, process)
        running.add_done_callback(lambda done: self._release(caller, process, done))
        return await asyncio.shield(running)

    async def _turn(self, caller: str) -> None:
        """Wait for the turn; it has to be released."""
        turn: Turn = asyncio.get_running_loop().create_future()
        self._waiting.put(caller, (caller, turn))
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.drop(caller, (caller, turn))
            if turn.done() and not turn.cancelled():  # given in the same moment
                self._busy.discard(caller)
                self._give()
            raise

    def _release(self, caller: str, process: BoundedProcess, done: asyncio.Future[Any]) -> None:
        if not done.cancelled():
            done.exception()  # whoever asked may have left: then nobody else looks at it
        self._idle.append(process)
        if self._is_closed:
            process.end()
        self._busy.discard(caller)
        self._give()

    def _give(self) -> None:
        """Give turns while there is a process for them, one to a caller."""
        while len(self._busy) < MAX_PROCESSES and (taken := self._waiting.take(self._busy)) is not None:
            caller, turn = taken
            if not turn.done():  # else it has just left
                self._busy.add(caller)
                turn.set_result(None)
