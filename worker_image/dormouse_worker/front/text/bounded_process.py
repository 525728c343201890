"""A process of its own for work on what callers send: little time, little memory, and it may die of it.

Used by one thread at a time. Orders and answers are JSON behind their length; a late process is killed, and the next
order starts another.
"""

from __future__ import annotations

import json
import os
import select
import subprocess  # nosec B404  # our own programs, with an argument list
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dormouse_worker.front.text.orders import LENGTH, REFUSED, TEXT, encode

PASSED_ON = ("LANG", "LC_ALL", "TZ", "SYSTEMROOT", "LD_LIBRARY_PATH")  # of the environment: nothing that is secret
MAX_ANSWER_BYTES = 1 << 26  # far above any text that is allowed

ENDED = "the worker ends, or serves another model now; ask again"


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is for, how long it may take, and the words of a refusal."""

    program: str  # a module, run as a program
    subject: str  # what took too long
    starting: str  # while doing what: at the start
    working: str  # and for an order
    refusal: type[Exception]
    seconds: float  # of the clock, for one order
    start_s: float  # until it answers at all: it is Python that starts, on a machine that may be busy
    niceness: int = 0  # how far it stands back behind what else the machine computes; 19 = behind all


class Late(Exception):
    """The process did not answer in time."""


class BoundedProcess:
    """One process, used by one thread at a time; starts when it is first asked."""

    def __init__(self, job: Job, setup: Mapping[str, Any]) -> None:
        self._job = job
        self._setup = encode(setup)
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Lock()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"BoundedProcess({self._process.pid if self._process else 'not running'})"

    def start(self) -> None:
        """Start it unless it runs. Raises the job's refusal if the setup cannot be used."""
        if self._process is not None:
            return
        environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        argv, pipe = (sys.executable, "-m", self._job.program), subprocess.PIPE
        with self._closing:
            if self._is_closed:
                raise self._job.refusal(ENDED)
            self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=environ, bufsize=0)  # nosec B603
            if self._job.niceness:  # before it has threads, which inherit it
                niceness = max(self._job.niceness, os.getpriority(os.PRIO_PROCESS, 0))
                os.setpriority(os.PRIO_PROCESS, self._process.pid, niceness)
        try:
            self._exchange(self._setup, self._job.start_s, self._job.starting)
        except self._job.refusal:
            self.end()
            raise

    def ask(self, order: Mapping[str, Any]) -> str:
        """Return the answer to an order. Raises the job's refusal."""
        self.start()
        return self._exchange(encode(order), self._job.seconds, self._job.working)

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
            raise self._job.refusal(f"{self._job.subject} {why}, {what}") from error
        if REFUSED in answer:
            raise self._job.refusal(str(answer[REFUSED]))
        return str(answer[TEXT])


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
