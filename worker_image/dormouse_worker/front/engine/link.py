"""The connection to the engine process: starts it, reads and writes its socket, notices its end. Knows no gRPC.

One process at a time; after its end the link can be started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dormouse_worker.common.commands import Command
from dormouse_worker.common.frames import FrameSplitter, decode_engine, encode_frame
from dormouse_worker.common.ipc import (
    CommandRequest,
    CommandResult,
    EngineMessage,
    EngineStatus,
    FrontMessage,
    StepOutputs,
)
from dormouse_worker.front.engine.watchdog import RunningCommand
from dormouse_worker.front.sides import EngineEvents, EngineProcess, Spawn

logger = logging.getLogger(__name__)

READ_BYTES = 1 << 18
END_GRACE_S = 5.0  # what an engine gets to end by itself after we hung up
BROKEN_GRACE_S = 1.0  # the same after it hung up itself: it is about to end


class EngineLost(Exception):
    """The engine is not connected, so the command was not or may not have been carried out."""


class EngineOverdue(EngineLost):
    """The engine was killed while it carried out the command, because something took it too long."""


class _Waiting(NamedTuple):
    """A command without an answer so far."""

    command: Command
    answer: asyncio.Future[CommandResult]


class EngineLink:
    """Owns the engine's process and socket, and the commands that wait for an answer."""

    def __init__(
        self, spawn: Spawn, events: EngineEvents, clock: Callable[[], float], *, end_grace_s: float = END_GRACE_S
    ) -> None:
        self._spawn = spawn
        self._end_grace_s = end_grace_s
        self.events = events  # whom the engine serves; another one from a swap on
        self._clock = clock
        self._started_s: float | None = None  # None: there is no engine, or its end is at hand
        self._last_message_s = self._command_began_s = clock()
        self._writer: asyncio.StreamWriter | None = None
        self._pending: dict[int, _Waiting] = {}  # in the order of sending, in which the engine takes them
        self._command_ids = itertools.count(1)
        self._process: EngineProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()  # a stop waits for a start that is under way, or its process would be forgotten
        self._is_stopping = False  # for good
        self._is_ending = False  # the engine that is there: its end was asked for
        self.why_killed = ""  # of the last engine, if it was `kill` that ended it

    def __repr__(self) -> str:
        return f"EngineLink(connected={self.is_connected}, {len(self._pending)} commands)"

    @property
    def is_connected(self) -> bool:
        """Return whether messages reach the engine."""
        return self._writer is not None

    @property
    def is_alive(self) -> bool:
        """Return whether the engine was started and has not ended."""
        return self._supervisor is not None and not self._supervisor.done()

    @property
    def running_command(self) -> RunningCommand | None:
        """Return what the engine carries out, or has yet to begin with; None if it answered everything.

        That nobody waits for the answer any more does not end a command.
        """
        for waiting in self._pending.values():
            return RunningCommand(waiting.command, self._clock() - self._command_began_s)
        return None

    @property
    def age_s(self) -> float:
        """Return the seconds since the engine was started, 0 once it hung up or was hung up on."""
        return 0.0 if self._started_s is None else self._clock() - self._started_s

    @property
    def silence_s(self) -> float:
        """Return the seconds since the engine was last heard of."""
        return self._clock() - self._last_message_s

    async def start(self, socket_path: Path, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Listen, start the engine and return; it connects when it is up. Raises OSError if it cannot be started.

        Does nothing and returns False after `stop`, or if it is not wanted once nobody ends or starts one any more.
        Must not be called while an engine is alive.
        """
        async with self._starting:
            assert not self.is_alive, "one engine at a time"
            if self._is_stopping or not is_wanted():
                return False
            await self._start(socket_path)
            return True

    async def _start(self, socket_path: Path) -> None:
        connection: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        connection = asyncio.get_running_loop().create_future()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if connection.done():
                writer.close()
            else:
                connection.set_result((reader, writer))

        listener = await asyncio.start_unix_server(accept, socket_path)
        try:
            self._process = await self._spawn(socket_path)
        except BaseException:
            listener.close()
            raise
        self._started_s = self._last_message_s = self._clock()
        self._is_ending, self.why_killed = False, ""
        self._supervisor = asyncio.create_task(self._supervise(self._process, listener, connection))

    async def until_ended(self) -> None:
        """Wait until the engine that was started last has ended and everybody has been told; at once without one."""
        if self._supervisor is not None:
            await asyncio.shield(self._supervisor)

    def kill(self, why: str) -> None:
        """End the engine as a crash does, and tell who waits for it why; nothing happens if there is none."""
        if self._process is not None and self.is_alive:
            self.why_killed = why
            self._process.kill()

    def send(self, *messages: FrontMessage) -> None:
        """Write one frame; silently dropped when the engine is lost, whose requests `on_lost` has ended."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode_frame(list(messages)))

    async def command(self, command: Command) -> CommandResult:
        """Send one command and return its result. Raises EngineLost, EngineOverdue if `kill` ended the engine."""
        if self._writer is None:
            raise EngineLost("the engine is not connected")
        command_id = next(self._command_ids)
        answer: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        if not self._pending:
            self._command_began_s = self._clock()
        self._pending[command_id] = _Waiting(command, answer)
        self.send(CommandRequest(command_id, command))
        return await answer

    async def stop(self) -> None:
        """End the engine as `end` does, and start none from now on."""
        self._is_stopping = True
        await self.end()

    async def end(self, *, at_once: bool = False) -> None:
        """End the engine: ask, wait a little, kill; `at_once`: kill. Nobody hears of a death.

        Safe when it was never started or has ended. Another one may be started afterwards.
        """
        async with self._starting:
            if self._supervisor is None or self._process is None:
                return
            self._is_ending = True
            if at_once or self._writer is None:
                self._process.kill()
            self._close_socket()
            await asyncio.shield(self._supervisor)

    async def _supervise(
        self,
        process: EngineProcess,
        listener: asyncio.Server,
        connection: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
    ) -> None:
        ended = asyncio.create_task(process.wait())
        try:
            either: set[asyncio.Future[Any]] = {ended, connection}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if connection.done():
                reader, self._writer = connection.result()
                listener.close()
                await self._read_all(reader)
        finally:
            listener.close()
            if not connection.cancel():  # else one that connects from now on is hung up on
                connection.result()[1].close()
            self._lose()
        exit_code = await self._end(process, ended)
        if not self._is_asked_to_end:
            self.events.on_death(exit_code, process.last_words())

    async def _read_all(self, reader: asyncio.StreamReader) -> None:
        """Dispatch until the engine hangs up, or says what nobody understands."""
        splitter = FrameSplitter()
        try:
            while data := await reader.read(READ_BYTES):
                self._last_message_s = self._clock()
                for payload in splitter.feed(data):
                    for message in decode_engine(payload):
                        self._dispatch(message)
        except (OSError, ValueError, msgspec.DecodeError) as error:
            logger.error("engine connection broke", extra={"fields": {"error": error}})  # noqa: TRY400  no bug of ours
        except Exception:  # a bug of ours: without the rest of `_supervise` nobody would start another engine
            logger.exception("what the engine said could not be taken")

    def _dispatch(self, message: EngineMessage) -> None:
        if isinstance(message, StepOutputs):
            self.events.on_outputs(message)
        elif isinstance(message, EngineStatus):
            self.events.on_status(message)
        elif isinstance(message, CommandResult):
            self._command_began_s = self._clock()  # of the next one, if there is one
            waiting = self._pending.pop(message.command_id, None)
            if waiting is not None and not waiting.answer.done():
                waiting.answer.set_result(message)

    def _lose(self) -> None:
        self._started_s = None
        self._close_socket()
        self._writer = None
        for waiting in self._pending.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(self._why_lost())
        self._pending.clear()
        self.events.on_lost()

    def _why_lost(self) -> EngineLost:
        if self.why_killed:
            return EngineOverdue(f"the engine was killed: {self.why_killed}")
        return EngineLost("the engine died while it carried out the command")

    @property
    def _is_asked_to_end(self) -> bool:
        return self._is_stopping or self._is_ending

    def _close_socket(self) -> None:
        if self._writer is not None:
            self._writer.close()

    async def _end(self, process: EngineProcess, ended: asyncio.Task[int]) -> int:
        """Return the exit code; kill a process that outlives its socket."""
        grace_s = self._end_grace_s if self._is_asked_to_end else BROKEN_GRACE_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                return await asyncio.shield(ended)
        process.kill()
        return await ended
