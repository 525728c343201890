"""The operator as a real process, started again whenever it ends, as a kubelet would."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.faults import metrics
from tests.faults.programs import Program


class OperatorProcess:
    """`python -m dormouse_operator`, over and over."""

    def __init__(self, env: Mapping[str, str], log: Path, on_change: Callable[[], None]) -> None:
        """Take the environment that decides everything, where output goes, and whom to tell of an end."""
        self._env = env
        self._on_change = on_change
        self._wanted = True
        self.log = log
        self.exit_codes: list[int] = []  # of the processes that ended while they were wanted; negative: the signal
        self.program = self._start()

    def __repr__(self) -> str:
        """Show the process and how earlier ones ended."""
        return f"OperatorProcess({self.program!r}, earlier exits {self.exit_codes})"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[OperatorProcess]:
        """Keep it running while the context lasts."""
        task = asyncio.create_task(self._supervise())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.to_thread(self.program.end)

    def kill(self) -> None:
        """End it by SIGKILL; it is started again."""
        self.program.signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end, as a kubelet does first (SIGTERM)."""
        self.program.signal(signal.SIGTERM)

    def pause(self) -> None:
        """Stop it as a frozen machine would (SIGSTOP)."""
        self.program.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self.program.signal(signal.SIGCONT)

    def retire(self) -> None:
        """Start it no more once it ends."""
        self._wanted = False

    def text(self) -> str:
        """Return everything that it has logged."""
        return self.log.read_text("utf-8", "replace")

    async def metric(self, sample: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels, 0 while the process does not answer."""
        return await metrics.read(int(self._env["DORMOUSE_METRICS_PORT"]), sample, **labels)

    def _start(self) -> Program:
        return Program([sys.executable, "-m", "dormouse_operator"], log=self.log, env=self._env)

    async def _supervise(self) -> None:
        """Wait for the end and start anew."""
        while True:
            code = await ended(self.program)
            self.exit_codes.append(code)
            self._on_change()
            if not self._wanted:
                return
            self.program = self._start()


async def ended(program: Program) -> int:
    """Return the exit code once there is one; the kernel tells through a pidfd."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(program.pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    code = program.exit_code
    assert code is not None
    return code
