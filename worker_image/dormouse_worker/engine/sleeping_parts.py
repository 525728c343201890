"""Puts one rank to sleep and wakes it, whole or in parts: what is kept, what is told, what a refusal leaves behind."""

from __future__ import annotations

from collections.abc import Callable

from dormouse_worker.common.commands import DEEPEST, KV_CACHE, Sleep
from dormouse_worker.common.errors import Damaged, WorkerError
from dormouse_worker.common.ipc import State
from dormouse_worker.common.memory_settings import MemorySettings
from dormouse_worker.engine.executor import Executor
from dormouse_worker.engine.sleep_state import SleepState
from dormouse_worker.engine.status import StatusTeller
from dormouse_worker.engine.stepping import Stepper


class SleepingParts:
    """Owns what sleeps. Errors that somebody can act on leave everything as it was; the caller sees to the others."""

    def __init__(
        self, executor: Executor, teller: StatusTeller, clock: Callable[[], float], settings: MemorySettings
    ) -> None:
        self._executor = executor
        self._teller = teller
        self._clock = clock
        self._settings = settings
        self._sleep_state = SleepState()

    def __repr__(self) -> str:
        return f"SleepingParts({self._sleep_state})"

    def sleep(self, command: Sleep, engine: Stepper) -> None:
        """Sleep, or sleep deeper, with an idle engine, which stays. Ends in ASLEEP.

        What sleeps so deep already stays as it is, but for a prepared wake, which gives back what it has reserved.
        """
        if self._sleep_state.covers(command.level, command.tags):
            self._executor.sleep(command.level, command.tags)
            return
        started_s = self._clock()
        keeps_prefixes = self._settings.keep_prefix_cache and command.level < DEEPEST
        loses_prefixes = KV_CACHE in command.tags and not keeps_prefixes
        kept_blocks = engine.cached_blocks if keeps_prefixes and KV_CACHE not in self._sleep_state.tags else ()
        try:
            report = self._executor.sleep(command.level, command.tags, kept_blocks)
        except WorkerError:
            if loses_prefixes:
                self._forget_in_a_group(engine)
            raise
        if loses_prefixes:
            engine.forget_prefixes()
        engine.images.sleep(keeps=self._settings.keeps_images(command.level))
        self._sleep_state = self._sleep_state.deepen(command.level, command.tags)
        self._teller.change(
            State.ASLEEP,
            num_gpu_blocks=0,
            num_cpu_blocks=0,
            sleep_level=self._sleep_state.level,
            sleeping_tags=self._sleep_state.tags,
            freed_bytes=report.freed_bytes,
            residual_bytes=report.residual_bytes,
            host_copy_bytes=report.host_copy_bytes,
            last_sleep_seconds=self._clock() - started_s,
            sleep_phases=dict(report.phases),
        )

    def prepare_wake_up(self, tags: tuple[str, ...]) -> int:
        """Reserve what waking takes; return the bytes that are missing for it, 0 = reserved."""
        asleep = self._asleep_of(tags)
        return self._executor.prepare_wake_up(asleep) if asleep else 0

    def wake_up(self, tags: tuple[str, ...], engine: Stepper) -> bool:
        """Wake these parts; return whether nothing sleeps any more: then the caller opens, else the rank is ASLEEP.

        Raises Damaged in WAKING; another WorkerError in ASLEEP, as before.
        """
        asleep = self._asleep_of(tags)
        if not asleep:
            return False
        started_s = self._clock()
        self._teller.change(State.WAKING)
        try:
            report = self._executor.wake_up(asleep)
        except Damaged:
            raise
        except WorkerError:
            self._forget_in_a_group(engine)
            self._teller.change(State.ASLEEP)  # refused: asleep and intact, a later wake may fit
            raise
        self._sleep_state = self._sleep_state.wake(asleep)
        self._teller.note(
            sleep_level=self._sleep_state.level,
            sleeping_tags=self._sleep_state.tags,
            last_wake_seconds=self._clock() - started_s,
            wake_phases=dict(report.phases),
        )
        if self._sleep_state.tags:
            self._teller.change(State.ASLEEP)
            return False
        self._teller.note(residual_bytes=0)
        return True

    def _forget_in_a_group(self, engine: Stepper) -> None:
        """Forget prefixes if there are other ranks: some may have carried out what others refused, and gone back.

        Their memory went and came, or came and went, and what was kept over that is no longer there.
        """
        if self._executor.get_rank_statuses():
            engine.forget_prefixes()

    def _asleep_of(self, tags: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(tag for tag in tags if tag in self._sleep_state.tags)
