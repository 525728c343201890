"""Reads a model's files when the front starts, in a thread that nobody has to wait for.

A file on a volume whose server is gone can hold whoever reads it for ever. The ports open all the same, and say so.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dormouse_worker.common.errors import ModelUnreadable, WorkerError
from dormouse_worker.front.engine.config import EngineConfig
from dormouse_worker.front.worker import Worker

logger = logging.getLogger(__name__)

Start = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the files of a model may take, in seconds. A worker that gave up starts anew when they answer."""

    opens_s: float = 5.0  # then the ports open without them: headers and a tokenizer take less
    fails_s: float = 60.0  # then the worker is FAILED, so that somebody looks at the volume


class FirstReading:
    """Owns the thread that reads, and what it found."""

    def __init__(
        self,
        read: Callable[[], EngineConfig],
        without: Callable[[WorkerError], EngineConfig],
        path: Path,
        patience: Patience,
    ) -> None:
        """Begin to read. `without` makes what is served until the files, below `path`, answered."""
        self._without, self._path, self._patience = without, path, patience
        self.was_soon = False
        self._found: Future[EngineConfig] = Future()
        self._found.set_running_or_notify_cancel()  # nobody who waits may cancel it
        threading.Thread(target=self._run, args=(read,), name="model files", daemon=True).start()

    def __repr__(self) -> str:
        return f"FirstReading({self._path}, done={self._found.done()})"

    def soon(self) -> EngineConfig:
        """Return what was read, or what stands in for it where the files do not answer within the patience."""
        wait([self._found], self._patience.opens_s)  # what was raised may be a TimeoutError of the volume's: ETIMEDOUT
        if not self._found.done():
            missing = self._missing(self._patience.opens_s)
            logger.warning("%s", missing)
            return self._without(missing)
        self.was_soon = True
        return self._found.result()

    async def hand_over(self, worker: Worker, start_engine: Start) -> None:
        """Let the worker serve what was read, or fail with the reason. Raises OSError without an engine."""
        edition = worker.served.edition = await asyncio.wrap_future(self._found)
        if isinstance(edition.model, WorkerError):
            worker.board.fail(edition.model.reason, str(edition.model))
        else:
            await start_engine()

    async def hand_over_late(self, worker: Worker, start_engine: Start) -> None:
        """Do so when the files answer; a worker that gave up by then ends, and its container starts anew.

        Raises nothing: whatever goes wrong here ends the worker, or nobody would hear of it.
        """
        try:
            if await self._answers():
                await self.hand_over(worker, start_engine)
                return
            missing = self._missing(self._patience.fails_s)
            worker.board.fail(missing.reason, str(missing))
            await asyncio.wrap_future(self._found)
        except Exception as error:  # noqa: BLE001  told where one looks
            worker.losses.note(f"the engine process cannot be started: {type(error).__name__}: {error}")
        worker.died.set()

    async def _answers(self) -> bool:
        """Return whether the files answer before the patience ends, with whatever: also an error is an answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience.fails_s):
                await asyncio.wrap_future(self._found)
        return self._found.done()

    def _missing(self, waited_s: float) -> ModelUnreadable:
        return ModelUnreadable(
            f"{self._path}: a file there did not answer for {waited_s:g} s; is its volume mounted, and its server up?"
        )

    def _run(self, read: Callable[[], EngineConfig]) -> None:
        try:
            self._found.set_result(read())
        except BaseException as error:  # noqa: BLE001  whoever waits is told
            self._found.set_exception(error)
