"""The fake engine of `testing` in the place of a process: what a front spawns, within a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from dormouse_worker.common.frames import FrameSplitter, decode_front, encode_frame
from dormouse_worker.common.ipc import EngineMessage, FrontMessage
from dormouse_worker.front.engine.status_board import Changes
from dormouse_worker.testing.fake_engine import FakeDeath, FakeEngine, Script


class InProcessEngine:
    """A fake engine as a task of the test's event loop, over a real unix socket. Implements `EngineProcess`.

    Loading ends when `loaded` is set (it is from the start, unless the script hangs there); while `is_paused` tokens
    come only from `step`.
    """

    def __init__(self, script: Script | None = None) -> None:
        self.engine = FakeEngine(script or Script())
        self.is_paused = False
        self.loaded = asyncio.Event()
        if self.engine.script.hangs_at != "load":
            self.loaded.set()
        self._changes = Changes()
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._words = ""
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def is_spawned(self) -> bool:
        """Return whether it was started, be it dead by now."""
        return self._task is not None

    async def spawn(self, socket_path: Path) -> InProcessEngine:
        """Connect; given to the front as its `Spawn`."""
        self._task = asyncio.create_task(self._run(socket_path))
        return self

    async def wait(self) -> int:
        """See `EngineProcess`."""
        return await asyncio.shield(self._exit)

    def kill(self) -> None:
        """See `EngineProcess`."""
        self.die(-9)

    def last_words(self) -> str:
        """See `EngineProcess`."""
        return self._words

    def die(self, exit_code: int, words: str = "") -> None:
        """End as a crashing process does."""
        if not self._exit.done():
            self._words = words
            self._exit.set_result(exit_code)
        if self._writer is not None:
            self._writer.close()
        if self._task is not None:
            self._task.cancel()

    def say(self, *messages: EngineMessage) -> None:
        """Send messages to the front."""
        assert self._writer is not None, "connected"
        self._writer.write(encode_frame(list(messages)))

    def step(self) -> None:
        """Give every request one token."""
        self.say(*self.engine.step())

    async def until_received(self, holds: Callable[[FrontMessage], bool]) -> FrontMessage:
        """Wait until such a message came, and return it."""
        await self._changes.until(lambda: any(holds(message) for message in self.engine.received))
        return next(message for message in self.engine.received if holds(message))

    async def _run(self, socket_path: Path) -> None:
        reader, self._writer = await asyncio.open_unix_connection(socket_path)
        self.say(*self.engine.begin())
        await self.loaded.wait()
        self.say(*self.engine.load())
        with contextlib.suppress(ConnectionError):  # the front hung up with words of ours unread
            await self._converse(reader)
        self.die(0)

    async def _converse(self, reader: asyncio.StreamReader) -> None:
        splitter = FrameSplitter()
        while data := await reader.read(1 << 16):
            for payload in splitter.feed(data):
                self._take(decode_front(payload))
            while self.engine.has_work and not self.is_paused:
                self.step()
                await asyncio.sleep(0)

    def _take(self, messages: list[FrontMessage]) -> None:
        for message in messages:
            try:
                self.say(*self.engine.handle(message))
            except FakeDeath as death:
                self.die(3, str(death))
        self._changes.notify()
