"""One rank's sleep and wake: memory counted, the other ranks met, and what was begun taken back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

from dormouse_worker.common.commands import LEVELS, LIGHTEST, TAGS
from dormouse_worker.engine.executor import SleepReport, WakeReport
from dormouse_worker.executor.worker.barrier import RankBarrier
from dormouse_worker.executor.worker.memory_errors import memory_errors
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.memory.resident import Meter
from dormouse_worker.model.stopwatch import Stopwatch
from dormouse_worker.model.weights.store import WeightStore


class Sleepable(Protocol):
    """What of a worker sleeps: its weights, and what is computed over them."""

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """Return what sleeps."""

    @property
    def host_copy_bytes(self) -> int:
        """Return the host memory that copies take, the weights' not counted."""

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int], watch: Stopwatch) -> None:
        """See `Allocation.sleep`."""

    def prepare(self, tags: Collection[str]) -> int:
        """See `Allocation.prepare`."""

    def wake(
        self, tags: Collection[str], agree: Callable[[], None], verify: Callable[[], None], watch: Stopwatch
    ) -> None:
        """See `Allocation.wake`."""


@dataclass(frozen=True, slots=True)
class Sleeper:
    """What of a rank sleeps, and who counts its memory; owns nothing."""

    device: Device
    meter: Meter
    weights: WeightStore
    allocation: Sleepable

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int]) -> SleepReport:
        """See `WorkerBase`. Raises InvalidArgument for blocks that the cache has not, InsufficientMemory."""
        assert level in LEVELS, level
        assert set(tags) <= set(TAGS), tags
        assert level == LIGHTEST or not kept_blocks, "only the lightest level keeps blocks"
        watch, before_bytes = Stopwatch(), self.meter.own_bytes()
        self.device.synchronize()
        with memory_errors("the copies that a sleep needs cannot be made"):
            self.allocation.sleep(level, tags, kept_blocks, watch)
        with watch.phase("drop"):
            self.meter.release_unused()
        residual_bytes = self.meter.own_bytes()
        host_copy_bytes = self.weights.host_copy_bytes + self.allocation.host_copy_bytes
        return SleepReport(max(0, before_bytes - residual_bytes), residual_bytes, host_copy_bytes, watch.phases)

    def prepare(self, tags: Collection[str]) -> int:
        """See `WorkerBase.prepare_wake_up`."""
        assert set(tags) <= set(TAGS), tags
        with memory_errors("the wake cannot be prepared"):
            return self.allocation.prepare(tags)

    def wake(
        self, tags: Collection[str], meeting: RankBarrier | None, verify: Callable[[Stopwatch], None]
    ) -> WakeReport:
        """See `WorkerBase.wake_up`. Without a meeting no other rank takes part."""
        assert set(tags) <= set(TAGS), tags
        watch = Stopwatch()
        if not set(tags) & set(self.allocation.sleeping_tags):
            return WakeReport({})
        agree = meeting.meet if meeting is not None else _nobody_to_meet
        try:
            with meeting or nullcontext(), memory_errors("the wake is taken back"):
                self.allocation.wake(tags, agree, lambda: verify(watch), watch)
        except BaseException:
            self.meter.release_unused()
            raise
        return WakeReport(watch.phases)


def _nobody_to_meet() -> None:
    """Go on at once."""
