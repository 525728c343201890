"""One view of a run that takes minutes: numbered steps with their times; on a terminal also what happens now."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from rich.console import Console
from rich.status import Status


@dataclass
class Step:
    """One running step; `tell` shows what it is doing."""

    console: Console
    label: str
    status: Status | None

    def tell(self, text: str) -> None:
        """Show the latest line: in place on a terminal, else as a line of its own."""
        if self.status:
            self.status.update(f"{self.label} [dim]{text[:90]}[/dim]")
        else:
            self.console.print(f"        {text}", highlight=False, markup=False, soft_wrap=True)


class Progress:
    """Counts and times the steps of one run."""

    def __init__(self, total: int, console: Console | None = None, *, before_s: float = 0.0) -> None:
        """Take the number of steps, and the seconds that the run took before this began to count."""
        self.console = console or Console()
        self.before_s = before_s
        self._total = total
        self._done = 0
        self._started = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the run began, those before this began to count among them."""
        return self.before_s + time.monotonic() - self._started

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Run the block as the next step and print its time; a failure is printed with the step's name."""
        self._done += 1
        label = f"[{self._done}/{self._total}] {title}"
        started = time.monotonic()
        status = self.console.status(label) if self.console.is_terminal else None
        if status:
            status.start()
        else:
            self.console.print(label, highlight=False, markup=False, soft_wrap=True)
        try:
            yield Step(self.console, label, status)
        except BaseException:
            self._end(status, f"✗ {label} failed after {time.monotonic() - started:.1f} s")
            raise
        self._end(status, f"✓ {label}  {time.monotonic() - started:.1f} s")

    def _end(self, status: Status | None, line: str) -> None:
        if status:
            status.stop()
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def begun(command: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Begin a command that works beside the block, for `follow` to wait for; it ends with the block at the latest.

    What it prints until then has to fit into the pipe (64 KiB): one that says more stands still until it is followed.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=env
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def follow(process: subprocess.Popen[str], step: Step) -> None:
    """Tell the lines of a begun command as they come; on failure end with the last of them."""
    assert process.stdout is not None
    last: deque[str] = deque(maxlen=25)
    with process.stdout:
        for line in process.stdout:
            last.append(line.rstrip())
            if line.strip():
                step.tell(line.rstrip())
    if process.wait():
        command = shlex.join(cast("Sequence[str]", process.args))
        sys.exit("\n".join([*last, f"'{command}' ended with {process.returncode}"]))


def stream(command: Sequence[str], step: Step, env: Mapping[str, str] | None = None) -> None:
    """Run a command and tell its lines as they come; on failure end with the last of them."""
    with begun(command, env) as process:
        follow(process, step)
