"""Keeps the ranks of a follower's pod running: they begin together, end together, and begin anew after a moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from dormouse_worker.common.exit_codes import EXIT_GPU_UNHEALTHY, end_words
from dormouse_worker.common.ipc import State
from dormouse_worker.front.engine.status_board import Changes, Failure
from dormouse_worker.front.follower.rank_spawn import RankProcess, SpawnRank

logger = logging.getLogger(__name__)

FIRST_DELAY_S = 0.5  # the leader needs longer than that to begin anew
WATCH_PERIOD_S = 0.75  # between two looks for signs of life
MAX_DELAY_S = 8.0  # reached by doubling, while the ranks end without having joined


class RankKeeper:
    """Owns the rank processes and the state: STARTING, READY once all have joined, FAILED, DRAINING at the end."""

    def __init__(
        self,
        ranks: Sequence[int],
        spawn: SpawnRank,
        *,
        patience_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.ranks = ranks
        self.changes = Changes()
        self.state = State.STARTING
        self.last_failure: Failure | None = None
        self._spawn = spawn
        self._patience_s = patience_s
        self._sleep = sleep
        self._processes: list[RankProcess] = []
        self._is_last = False  # the pod ends: what ends now does not begin again

    def __repr__(self) -> str:
        return f"RankKeeper({list(self.ranks)}, {self.state}, {len(self._processes)} processes)"

    async def run(self) -> None:
        """Keep them until cancelled, or one ends by its device, or after `part`. Raises OSError if none can start."""
        delay_s = FIRST_DELAY_S
        try:
            while True:
                had_joined = await self._live()
                if self.state is State.FAILED or self._is_last:
                    return
                delay_s = FIRST_DELAY_S if had_joined else min(2 * delay_s, MAX_DELAY_S)
                await self._sleep(delay_s)
        finally:
            await self._end_all()

    def part(self) -> bool:
        """Begin nothing again; return whether a leader still computes with these ranks. Then `run` ends with it."""
        self._is_last = True
        is_needed = self.state is State.READY
        self._enter(State.DRAINING)
        return is_needed

    async def _live(self) -> bool:
        """Start all, wait until one ends, end the others; return whether all had joined."""
        for rank in self.ranks:
            self._processes.append(await self._spawn(rank))  # one by one: what has started is known if the next cannot
        tasks = asyncio.create_task(self._await_joined()), asyncio.create_task(self._watch())
        waits = [asyncio.create_task(process.wait()) for process in self._processes]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*tasks, *waits):
                if not task.done():
                    task.cancel()
        first = next(index for index, wait in enumerate(waits) if wait.done() and not wait.cancelled())
        had_joined = self.state is State.READY
        self._note_end(self.ranks[first], self._processes[first], waits[first].result())
        await self._end_all()
        return had_joined

    async def _await_joined(self) -> None:
        for process in self._processes:
            await process.until_joined()
        self._enter(State.READY)

    async def _watch(self) -> None:
        """End a rank that is found silent at two looks in a row: a stopped one does not see its leader go."""
        was_silent: set[int] = set()
        while True:
            await self._sleep(WATCH_PERIOD_S)
            known = zip(self.ranks, self._processes, strict=True)
            silent = {rank: process for rank, process in known if process.silence_s > self._patience_s}
            for rank in was_silent & silent.keys():
                logger.error(
                    "rank is killed",
                    extra={"fields": {"rank": rank, "silent for (s)": round(silent[rank].silence_s, 1)}},
                )
                silent[rank].kill()
            was_silent = set(silent)

    def _note_end(self, rank: int, process: RankProcess, exit_code: int) -> None:
        words = f"the process of rank {rank} {end_words(exit_code)}; its last words: {process.last_words() or 'none'}"
        is_ill = exit_code == EXIT_GPU_UNHEALTHY
        self.last_failure = Failure("GPUUnhealthy" if is_ill else "GroupBroken", words)
        logger.error("rank ended", extra={"fields": {"rank": rank, "reason": words}})
        self._enter(State.FAILED if is_ill else State.STARTING)

    def _enter(self, state: State) -> None:
        self.state = state
        self.changes.notify()

    async def _end_all(self) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            process.kill()
        await asyncio.gather(*(process.wait() for process in processes))
