"""How a follower's rank processes are started: one process each, which looks for the leader by itself."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from dormouse_worker.common.group import GroupPlace
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.engine.spawn import SubprocessEngine
from dormouse_worker.front.sides import EngineProcess

RANK_ARGV: tuple[str, ...] = (sys.executable, "-m", "dormouse_worker.executor.rank_process")
JOINED = b"joined"  # the line that a rank writes once its leader has welcomed it; any line is a sign of life


class RankProcess(EngineProcess, Protocol):
    """A started rank."""

    @property
    def silence_s(self) -> float:
        """Return the seconds since its last sign of life."""

    async def until_joined(self) -> None:
        """Return when the leader has welcomed it; never, if it ends before."""


SpawnRank = Callable[[int], Awaitable[RankProcess]]


class SubprocessRank(SubprocessEngine):
    """A child process; implements `RankProcess`. Its standard output says that it lives, and that it has joined."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._joined = asyncio.Event()
        self._heard_s = time.monotonic()
        super().__init__(process)

    @property
    def silence_s(self) -> float:
        """See `RankProcess`."""
        return time.monotonic() - self._heard_s

    async def until_joined(self) -> None:
        """See `RankProcess`."""
        await self._joined.wait()

    async def _read_stdout(self) -> None:
        assert self._process.stdout is not None, "started with a pipe"
        async for line in self._process.stdout:
            self._heard_s = time.monotonic()
            if line.strip() == JOINED:
                self._joined.set()


def rank_spawner(
    argv: Sequence[str], environ: Mapping[str, str], settings: EngineSettings, place: GroupPlace
) -> SpawnRank:
    """Return what starts one rank of this pod."""

    async def spawn(rank: int) -> SubprocessRank:
        process = await asyncio.create_subprocess_exec(
            *argv,
            *("--rank", str(rank)),
            *("--address", f"{place.master_addr}:{place.message_port}"),
            *("--connect-timeout", str(place.start_timeout_s)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environ),
        )
        assert process.stdin is not None, "started with a pipe"
        process.stdin.write(msgspec.json.encode(settings))
        process.stdin.close()
        return SubprocessRank(process)

    return spawn
