"""Has chats rendered by processes of their own: bounded in time and memory, fair between callers. Knows no jinja.

At most two processes, each started when it is needed and kept; a caller has one at most. One that is late is killed,
and the next chat starts another. What the caller sees then is a refusal: it is the template that takes too long, or
what was given to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import subprocess  # nosec B404  # our own program, with an argument list
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from dormouse_api.limits import MAX_MESSAGE_BYTES
from dormouse_worker.front.text.chat import TemplateRefused, choose
from dormouse_worker.front.text.template_process import LENGTH, REFUSED, TEXT, encode, told_time
from dormouse_worker.front.text.turns import Rota, Turn

MAX_PROCESSES = 2
ARGV = (sys.executable, "-m", "dormouse_worker.front.text.template_process")
PASSED_ON = ("LANG", "LC_ALL", "TZ", "SYSTEMROOT", "LD_LIBRARY_PATH")  # of the environment: nothing that is secret
MAX_ANSWER_BYTES = 1 << 26  # far above any text that is allowed

ENDED = "the worker ends, or serves another model now; ask again"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What a template may take."""

    seconds: float = 5.0  # of the clock, for one chat; and to compile all templates
    start_s: float = 30.0  # until the process answers at all: it is Python that starts, on a machine that may be busy
    memory_bytes: int = 256 << 20  # beyond what the process begins with
    max_chars: int = 4 * MAX_MESSAGE_BYTES  # of the rendered text


class Late(Exception):
    """The process did not answer in time."""


class TemplateProcess:
    """One process, used by one thread at a time; starts when it is first asked."""

    def __init__(self, setup: Mapping[str, Any], limits: RenderLimits) -> None:
        self._setup = encode(setup)
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Lock()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"TemplateProcess({self._process.pid if self._process else 'not running'})"

    def start(self) -> None:
        """Start it unless it runs. Raises TemplateRefused if the templates cannot be compiled."""
        if self._process is not None:
            return
        environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        pipe = subprocess.PIPE
        with self._closing:
            if self._is_closed:
                raise TemplateRefused(ENDED)
            self._process = subprocess.Popen(ARGV, stdin=pipe, stdout=pipe, env=environ, bufsize=0)  # nosec B603
        try:
            self._exchange(self._setup, self._limits.start_s, "compiling it")
        except TemplateRefused:
            self.end()
            raise

    def render(self, order: Mapping[str, Any]) -> str:
        """Return the rendered text. Raises TemplateRefused."""
        self.start()
        return self._exchange(encode(order), self._limits.seconds, "rendering this chat")

    def close(self) -> None:
        """Kill it for good; whoever waits for it in another thread is refused, and ends it."""
        with self._closing:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()

    def end(self) -> None:
        """Kill it and give back what it had; the next one to ask starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None, "started with pipes"
                pipe.close()

    def _exchange(self, message: bytes, seconds: float, what: str) -> str:
        """Send and receive. Where that fails the process is gone afterwards."""
        process = self._process
        assert process is not None, "started before"
        assert process.stdin is not None, "started with pipes"
        assert process.stdout is not None, "started with pipes"
        until_s = time.monotonic() + seconds
        try:
            write(process.stdin.fileno(), message, until_s)
            answer = read(process.stdout.fileno(), until_s)
        except (Late, OSError) as error:
            self.end()
            why = f"took longer than {seconds:g} s" if isinstance(error, Late) else "took too much time or memory"
            raise TemplateRefused(f"the model's chat template {why}, {what}") from error
        if REFUSED in answer:
            raise TemplateRefused(str(answer[REFUSED]))
        return str(answer[TEXT])


class Renderer:
    """Owns the processes that render one model's chats, and who has which."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime],
        limits: RenderLimits | None = None,
    ) -> None:
        """Start nothing yet."""
        self._limits = limits or RenderLimits()
        self._names = tuple(sources)
        self._now = now
        self._threads = ThreadPoolExecutor(MAX_PROCESSES, thread_name_prefix="template")
        own = {"sources": dict(sources), "special_tokens": dict(special_tokens)}
        bounds = {name: getattr(self._limits, name) for name in ("seconds", "memory_bytes", "max_chars")}
        self._processes = [TemplateProcess(own | bounds, self._limits) for _ in range(MAX_PROCESSES)]
        self._idle = list(self._processes)  # the last one was used last: it runs
        self._waiting: Rota[tuple[str, Turn]] = Rota()
        self._busy: set[str] = set()  # callers whose chat is being rendered
        self._is_closed = False

    def __repr__(self) -> str:
        return f"Renderer({', '.join(self._names) or 'none'}; {len(self._busy)} at work, {self._waiting!r})"

    def __bool__(self) -> bool:
        """Return whether the model has any template."""
        return bool(self._names)

    async def warm(self) -> None:
        """Start a process before it is needed. Templates that cannot be compiled say so when they are needed."""
        if self._names and len(self._idle) == MAX_PROCESSES:
            with contextlib.suppress(TemplateRefused):
                await self._run("", TemplateProcess.start)

    async def render(self, chat: Mapping[str, Any], caller: str, then: Callable[[str], T]) -> T:
        """Return what `then` makes of the rendered text, in the thread that waited for it. Raises TemplateRefused.

        `chat` are the arguments of `ChatTemplates.render`. Who stops waiting does not stop the process: its time is
        limited, and so is each caller's share.
        """
        choose(self._names, with_tools=chat["tools"] is not None)
        order = {"chat": chat, "now": told_time(self._now())}
        return await self._run(caller, lambda process: then(process.render(order)))

    def close(self) -> None:
        """End all processes; chats that are being rendered, or wait for it, are refused."""
        self._is_closed = True
        for process in self._processes:
            process.close()
        for process in self._idle:
            process.end()
        self._threads.shutdown(wait=False)

    async def _run(self, caller: str, work: Callable[[TemplateProcess], T]) -> T:
        await self._turn(caller)
        if self._is_closed:
            self._busy.discard(caller)
            self._give()
            raise TemplateRefused(ENDED)
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

    def _release(self, caller: str, process: TemplateProcess, done: asyncio.Future[Any]) -> None:
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


def write(pipe: int, data: bytes, until_s: float) -> None:
    """Write everything. Raises Late, or OSError if the other end is gone."""
    os.set_blocking(pipe, False)
    view = memoryview(data)
    while view:
        _wait(pipe, select.POLLOUT, until_s)
        view = view[os.write(pipe, view) :]


def read(pipe: int, until_s: float) -> dict[str, Any]:
    """Return one answer. Raises Late, or OSError if the other end is gone or says something else."""
    (size,) = LENGTH.unpack(_read_exactly(pipe, LENGTH.size, until_s))
    answer = json.loads(_read_exactly(pipe, size, until_s))
    if not isinstance(answer, dict):
        raise BrokenPipeError("no answer")
    return answer


def _read_exactly(pipe: int, size: int, until_s: float) -> bytes:
    if size > MAX_ANSWER_BYTES:
        raise BrokenPipeError(f"an answer of {size} bytes")
    data = bytearray()
    while len(data) < size:
        _wait(pipe, select.POLLIN, until_s)
        part = os.read(pipe, size - len(data))
        if not part:
            raise BrokenPipeError("the process has ended")
        data += part
    return bytes(data)


def _wait(pipe: int, event: int, until_s: float) -> None:
    """Wait until a pipe can be used. `poll`, for `select` knows no numbers above 1023. Raises Late."""
    waiting = select.poll()
    waiting.register(pipe, event)
    left_s = until_s - time.monotonic()
    if left_s <= 0 or not waiting.poll(left_s * 1000):
        raise Late
