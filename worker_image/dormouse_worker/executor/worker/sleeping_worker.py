"""Sleep and wake as every worker of ours does them: by a `Sleeper`, which a subclass makes of what it has."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence

from dormouse_worker.common.errors import Damaged
from dormouse_worker.engine.executor import SleepReport, WakeReport
from dormouse_worker.executor.worker.barrier import RankBarrier
from dormouse_worker.executor.worker.base import WorkerBase
from dormouse_worker.executor.worker.sleeper import Sleeper
from dormouse_worker.model.stopwatch import Stopwatch


class SleepingWorker(WorkerBase):
    """Implements of `WorkerBase` what sleeps and wakes; a subclass says of what, and who proves it awake."""

    @abstractmethod
    def sleeper(self) -> Sleeper:
        """Return what sleeps; it is there after `initialize_cache`."""

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int] = ()) -> SleepReport:
        """See `WorkerBase`."""
        return self.sleeper().sleep(level, tags, kept_blocks)

    def prepare_wake_up(self, tags: Collection[str]) -> int:
        """See `WorkerBase`."""
        return self.sleeper().prepare(tags)

    def wake_with(
        self, tags: Collection[str], meeting: RankBarrier | None, verify: Callable[[Stopwatch], None]
    ) -> WakeReport:
        """Wake these, and meet the other ranks where there are any. Raises what the sleeper does."""
        try:
            return self.sleeper().wake(tags, meeting, verify)
        except Damaged:  # for good: hold nothing
            self.shutdown()
            raise
