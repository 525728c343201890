"""Whether the roll-out has failed, and why. Pure, stores nothing but what the condition Progressing says.

A roll-out that stopped takes no old pod away that is needed to serve, and creates nothing beside a worker that fails.
It goes on when the reason is gone: the late pod serves, the crashed worker is back, the spec is another one. Only a
refused swap leaves no trace in the world: the old engine serves again. It stands in the condition, with its revision.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from dormouse_operator.decide.rollout.inventory import (
    Standing,
    is_available,
    is_exchanging,
    is_rolling_out,
    is_swapping,
)
from dormouse_operator.decide.rollout.limits import Limits
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Pod, WorkerState

CONDITION = "Progressing"
COMPLETE = "Complete"
DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
SWAP_REFUSED = "SwapRefused"
WORKER_FAILED = "WorkerFailed"


@dataclass(frozen=True, slots=True)
class Stall:
    """Why a roll-out stopped."""

    reason: str
    message: str


def stall_of(situation: Situation, standing: Standing) -> Stall | None:
    """Return why the roll-out stopped, None if it goes on or there is none."""
    if not is_rolling_out(situation, standing):
        return None
    return _refused_swap(situation, standing) or _failing_worker(situation, standing) or _late(situation, standing)


def limits_of_stall(limits: Limits, stop: Stall | None) -> Limits:
    """Return what may still be done: nothing below what is wanted; nothing above it beside a worker that fails."""
    if stop is None:
        return limits
    return Limits(0 if stop.reason == WORKER_FAILED else limits.max_surge, 0)


def progress_ends(situation: Situation, standing: Standing) -> datetime:
    """Return until when something has to happen: the last step that can be seen, and the deadline.

    While requests have their time to end, nobody is late.
    """
    recorded = situation.deployment.recorded.rollout
    begin = recorded.since if recorded and recorded.revision == situation.revision and recorded.since else situation.now
    created = [pod.created for pod in standing.new if pod.created]
    opened = [pod.gate_since for pod in standing.new if pod.gate_since and pod.gate_open]
    drain = timedelta(seconds=situation.deployment.lifecycle.drain_timeout_s)
    swapping = [pod for pod in standing.swappable if is_swapping(situation, pod)]
    drained = [pod.gate_since + drain for pod in (*swapping, *standing.ending) if pod.gate_since]
    deadline = timedelta(seconds=situation.deployment.rollout.progress_deadline_s)
    return max([begin, *created, *opened, *drained]) + deadline


def is_complete(situation: Situation, standing: Standing) -> bool:
    """Return whether all pods are as wanted, or were and only have to come back."""
    if is_exchanging(situation, standing):
        return False
    recorded = situation.deployment.recorded
    was_complete = recorded.reason(CONDITION) == COMPLETE and _is_recorded(situation)
    return was_complete or len(_available(situation, standing)) == situation.wanted_replicas


def is_late(situation: Situation, standing: Standing) -> bool:
    """Return whether nothing happened for too long while replicas are missing."""
    is_missing = len(_available(situation, standing)) < situation.wanted_replicas
    return is_missing and situation.now >= progress_ends(situation, standing)


def _available(situation: Situation, standing: Standing) -> list[Pod]:
    return [pod for pod in standing.new if is_available(situation, pod)]


def _is_recorded(situation: Situation) -> bool:
    """Return whether the recorded conditions are about the revision that is wanted."""
    recorded = situation.deployment.recorded.rollout
    return recorded is not None and recorded.revision == situation.revision


def _refused_swap(situation: Situation, standing: Standing) -> Stall | None:
    """Return who does not want the new engine. What was heard before this revision was recorded is about another."""
    if not _is_recorded(situation):
        return None
    refused = next((pod for pod in standing.swappable if pod.name in situation.observed.refusals), None)
    if refused:
        return Stall(SWAP_REFUSED, f"pod {refused.name}: {situation.observed.refusals[refused.name]}")
    known = situation.deployment.recorded.conditions.get(CONDITION)
    if known and known.condition.reason == SWAP_REFUSED:
        return Stall(SWAP_REFUSED, known.condition.message)
    return None


def _failing_worker(situation: Situation, standing: Standing) -> Stall | None:
    """Return the first new worker that failed or crashed."""
    for pod in standing.new:
        worker, container = situation.worker(pod), pod.container
        if (looping := situation.group(pod).looping) and not is_available(situation, pod):
            return Stall(WORKER_FAILED, f"pod {looping.name} ended with exit code {looping.container.exit_code}")
        if worker and worker.state is WorkerState.FAILED:
            words = f": {worker.failure.message}" if worker.failure else ""
            return Stall(WORKER_FAILED, f"pod {pod.name} has failed{words}")
        if container.exit_code and not is_available(situation, pod):
            return Stall(WORKER_FAILED, f"pod {pod.name} ended with exit code {container.exit_code}")
    return None


def _late(situation: Situation, standing: Standing) -> Stall | None:
    if not is_late(situation, standing):
        return None
    behind = next((pod.name for pod in standing.new if not is_available(situation, pod)), "")
    limit_s = situation.deployment.rollout.progress_deadline_s
    return Stall(DEADLINE_EXCEEDED, f"no progress for {limit_s} s{f'; pod {behind} does not serve' if behind else ''}")
