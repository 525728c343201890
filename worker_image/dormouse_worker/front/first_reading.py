"""Reads a model's files when the front starts, in a thread that nobody has to wait for.

A file on a volume whose server is gone can hold whoever reads it for ever. The ports open all the same, and say so.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from dormouse_worker.errors import ModelUnreadable, WorkerError
from dormouse_worker.front.edition import Edition
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
        self, read: Callable[[], Edition], without: Callable[[WorkerError], Edition], path: Path, patience: Patience
    ) -> None:
        """Begin to read. `without` makes what is served until the files, below `path`, answered."""
        self._without, self._path, self._patience = without, path, patience
        self.was_soon = False
        self._found: Future[Edition] = Future()
        self._found.set_running_or_notify_cancel()  # nobody who waits may cancel it
        threading.Thread(target=self._run, args=(read,), name="model files", daemon=True).start()

    def __repr__(self) -> str:
        return f"FirstReading({self._path}, done={self._found.done()})"

    def soon(self) -> Edition:
        """Return what was read, or what stands in for it where the files do not answer within the patience."""
        try:
            edition = self._found.result(self._patience.opens_s)
        except TimeoutError:
            missing = self._missing(self._patience.opens_s)
            logger.warning("%s", missing)
            return self._without(missing)
        self.was_soon = True
        return edition

    async def hand_over(self, worker: Worker, start_engine: Start) -> None:
        """Let the worker serve what was read, or fail with the reason. Raises OSError without an engine."""
        edition = worker.served.edition = await asyncio.wrap_future(self._found)
        if isinstance(edition.model, WorkerError):
            worker.board.fail(edition.model.reason, str(edition.model))
        else:
            await start_engine()

    async def hand_over_late(self, worker: Worker, start_engine: Start) -> None:
        """Do so when the files answer; a worker that gave up by then ends, and its container starts anew."""
        try:
            async with asyncio.timeout(self._patience.fails_s):
                await asyncio.wrap_future(self._found)
        except TimeoutError:
            missing = self._missing(self._patience.fails_s)
            worker.board.fail(missing.reason, str(missing))
            await asyncio.wrap_future(self._found)
            worker.died.set()
            return
        try:
            await self.hand_over(worker, start_engine)
        except OSError as error:
            worker.note_death(f"the engine process can not be started: {error}")
            worker.died.set()

    def _missing(self, waited_s: float) -> ModelUnreadable:
        return ModelUnreadable(
            f"{self._path}: a file there did not answer for {waited_s:g} s; is its volume mounted, and its server up?"
        )

    def _run(self, read: Callable[[], Edition]) -> None:
        try:
            self._found.set_result(read())
        except BaseException as error:  # noqa: BLE001  whoever waits is told
            self._found.set_exception(error)
