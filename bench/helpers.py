"""Programs of ours that answer each line of JSON with one line of JSON: clients and peers in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from bench.replies import Reply
from bench.workload import Request
from tools.bootstrap import ROOT, cache_root

T = TypeVar("T")


class Job(msgspec.Struct, frozen=True):
    """Requests to submit, all at once unless there is a rate, or a first one leads."""

    requests: tuple[Request, ...]
    port: int = 0  # of the worker or gateway, for a client
    model: str = ""  # as a gateway knows it, for a client; a worker needs none
    rate_per_s: float = 0.0  # evenly, however long the answers take, for a client; 0 = all at once
    stream_interval: int = 1  # tokens in a message, for a client
    batch_size: int = 16  # for a peer that works in static batches
    led: bool = False  # all but the first wait for its first token; ours and OpenVINO GenAI know this

    @property
    def waves(self) -> tuple[tuple[Request, ...], ...]:
        """Return the requests that come together: each wave once all before it have begun to answer."""
        return (self.requests[:1], self.requests[1:]) if self.led else (self.requests,)


class Helper:
    """One such program, started. Use as a context manager.

    With `rests` it is stopped, and all that it has started, from its first answer on whenever nobody asks it: libraries
    let threads spin for a while after their work, which would disturb whoever is measured next.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        python: str | Path = sys.executable,
        env: Mapping[str, str] | None = None,
        rests: bool = False,
    ) -> None:
        self._module = module
        self._rests = rests
        # A group of its own, which is stopped and goes on as a whole; who is stopped in it does not outlive us.
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment() if env is None else env,
            process_group=0 if rests else None,
        )

    def __repr__(self) -> str:
        return f"Helper({self._module}, pid={self._process.pid})"

    def __enter__(self) -> Helper:
        """Return the helper."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def run(self, job: Job) -> list[Reply]:
        """Have a job done. Raises RuntimeError if the program ended instead."""
        return self.ask(job, list[Reply])

    def ask(self, question: msgspec.Struct, kind: type[T]) -> T:
        """Return the answer, which is of this kind. Raises RuntimeError if the program ended instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write(msgspec.json.encode(question) + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._module} ended with {self._process.wait()}: see its words above")
        self._signal(signal.SIGSTOP)
        return msgspec.json.decode(answer, type=kind)

    @property
    def pid(self) -> int:
        """Return the program's process id."""
        return self._process.pid

    def _signal(self, number: signal.Signals) -> None:
        if self._rests and self._process.poll() is None:
            os.killpg(self._process.pid, number)


def environment(root: Path = ROOT) -> dict[str, str]:
    """Return the environment of a program that finds the packages of a checkout, this one, and asks no network.

    The programs' code is kept compiled, as it is in the images; the first start compiles it.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join(str(root / part) for part in ("api", "kube", "gateway", "worker_image", "cli", "."))
    compiled = str(cache_root() / "bytecode")
    ours = {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": compiled, "HF_HUB_OFFLINE": "1"}
    return {**inherited, **ours, "TOKENIZERS_PARALLELISM": "false"}


def answer_lines(work: Callable[[Job], list[Reply]]) -> None:
    """Be such a program until standard input ends."""
    answer_questions(Job, work)


def start_and_answer_lines(start: Callable[[], Callable[[Job], list[Reply]]]) -> None:
    """Be such a program whose start may print: what it returns does the work."""
    with _own_stdout() as out:
        _answer(out, Job, start())


def answer_questions(kind: Any, work: Callable[[Any], object]) -> None:
    """Be such a program for questions of this kind."""
    with _own_stdout() as out:
        _answer(out, kind, work)


def _answer(out: int, kind: Any, work: Callable[[Any], object]) -> None:
    for line in sys.stdin.buffer:
        os.write(out, msgspec.json.encode(work(msgspec.json.decode(line, type=kind))) + b"\n")


@contextmanager
def _own_stdout() -> Iterator[int]:
    """Keep standard output for the answers alone: what libraries print goes to standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        yield out
    finally:
        os.close(out)
