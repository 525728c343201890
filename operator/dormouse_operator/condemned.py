"""Which pods take no command, nor ever will: other ones take their place. Pure.

An epoch fences commands, so a worker that has seen one above every leader's obeys nobody. Epochs are counted from the
seconds since `COUNTED_FROM`, and rise by one with each change of hands, which takes longer than a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from dormouse_api.limits import MAX_EPOCH
from dormouse_operator.model import Condemnation, Pod, Worker

COUNTED_FROM = datetime(2025, 1, 1, tzinfo=UTC)  # seconds since then fit the lease's 32 bits until 2093
EPOCH_IMPOSSIBLE = "EpochImpossible"
_SPARE = 86_400  # how far clocks of leaders may have been apart, in seconds


def first_epoch(now: datetime) -> int:
    """Return an epoch that no earlier lease came to: workers may remember that of one that was deleted."""
    return int((now - COUNTED_FROM).total_seconds())


def condemn(
    pods: Iterable[Pod], answers: Mapping[str, Worker], *, now: datetime, epoch: int
) -> dict[str, Condemnation]:
    """Return which pods have to go, by name. `answers` are their workers' by name, `epoch` is our own."""
    possible = min(MAX_EPOCH - 1, max(epoch, first_epoch(now)) + _SPARE)
    found = ((pod.name, answers.get(pod.name)) for pod in pods)
    return {name: _impossible(name, worker) for name, worker in found if worker and worker.epoch > possible}


def _impossible(name: str, worker: Worker) -> Condemnation:
    words = f"pod {name}: its worker was given the epoch {worker.epoch}, which no operator has had"
    return Condemnation(EPOCH_IMPOSSIBLE, f"{words}, and obeys none since; another pod takes its place")
