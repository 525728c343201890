"""Which levels of sleep workers claim: others are not ordered. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import SLEEP_LEVELS, Pod, Rung, SleepLevel, Worker


def unclaimed(workers: Iterable[Worker]) -> frozenset[Rung]:
    """Return the rungs of the ladder on which not all of these workers can be."""
    rungs = list(Rung)
    return frozenset(rungs[level] for level in _lacked(workers))


def lacking(situation: Situation, pods: Iterable[Pod]) -> Pod | None:
    """Return a pod whose worker does not claim the level to which it is to fall asleep, None where there is none."""
    level = situation.sleep_level
    heard = ((pod, situation.worker(pod)) for pod in pods)
    return next((pod for pod, worker in heard if worker and level not in worker.sleep_levels), None)


def words(workers: Iterable[Worker]) -> str:
    """Return which levels some of these workers do not claim, as the end of a sentence; "" for none."""
    levels = " and ".join(map(str, _lacked(workers)))
    return f"; its worker claims no sleep of level {levels}" if levels else ""


def _lacked(workers: Iterable[Worker]) -> list[SleepLevel]:
    claimed = [worker.sleep_levels for worker in workers]
    return [level for level in SLEEP_LEVELS if not all(level in levels for levels in claimed)]
