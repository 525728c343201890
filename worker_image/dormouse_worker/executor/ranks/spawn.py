"""The rank processes of the leader's own pod: how they are started, looked at and ended."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dormouse_worker.common.errors import RankLost
from dormouse_worker.common.exit_codes import EXIT_GPU_UNHEALTHY
from dormouse_worker.common.settings import EngineSettings

logger = logging.getLogger(__name__)

RANK_ARGV: tuple[str, ...] = (sys.executable, "-m", "dormouse_worker.executor.rank_process")
END_GRACE_S = 5.0  # what ranks get to end by themselves once we hung up on them


class GpuRankUnhealthy(RankLost):
    """A rank ended because of its device, which a new one would get again."""


class LocalRanks:
    """Owns the child processes; they write to our standard error. Implements `Children`."""

    def __init__(self, argv: Sequence[str] = RANK_ARGV) -> None:
        self._argv = argv
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __repr__(self) -> str:
        return f"LocalRanks({self.pids})"

    @property
    def pids(self) -> dict[int, int]:
        """Return the process ids by rank."""
        return {rank: process.pid for rank, process in self._processes.items()}

    def start(self, ranks: Sequence[int], socket_path: Path, settings: EngineSettings, env: Mapping[str, str]) -> None:
        """Start one process for each rank. Raises OSError."""
        words = msgspec.json.encode(settings)
        for rank in ranks:
            argv = [*self._argv, "--rank", str(rank), "--socket", str(socket_path)]
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, env=dict(env))
            self._processes[rank] = process
            assert process.stdin is not None, "started with a pipe"
            with contextlib.suppress(BrokenPipeError):  # it has ended already: `check` tells
                process.stdin.write(words)
                process.stdin.close()

    def check(self) -> None:
        """See `Children`."""
        for rank, process in self._processes.items():
            exit_code = process.poll()
            if exit_code is not None:
                kind = GpuRankUnhealthy if exit_code == EXIT_GPU_UNHEALTHY else RankLost
                raise kind(f"rank {rank}: its process {_describe_end(exit_code)}; see its last words in the log")

    def end(self, grace_s: float = END_GRACE_S) -> None:
        """Wait for all of them, whose connections are closed, and kill who takes longer. Safe a second time."""
        deadline_s = time.monotonic() + grace_s
        for rank, process in self._processes.items():
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                logger.warning("rank %d does not end and is killed", rank)
                process.kill()
                process.wait()
        self._processes.clear()


def _describe_end(exit_code: int) -> str:
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
