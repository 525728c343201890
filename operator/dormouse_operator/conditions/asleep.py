"""Asleep: every worker has given its memory back, by order. Pure."""

from __future__ import annotations

from dormouse_operator.conditions.ladder import failed, holds, not_yet
from dormouse_operator.model import Condition, Observed, Pod, Worker, WorkerState

TYPE = "Asleep"
WAKING = "Waking"
AWAKE = "Awake"
GOING_TO_SLEEP = "GoingToSleep"
_SETTLED = {WorkerState.READY, WorkerState.DRAINING, WorkerState.ASLEEP}


def evaluate(observed: Observed) -> Condition:
    """See the module."""
    there = observed.replicas
    if not observed.deployment.replicas:
        return not_yet(TYPE, "NoReplicas", "spec.replicas is 0: there is nothing to sleep")
    if refused := next((pod for pod in there if _is_refused(observed, pod)), None):
        reason = "SleepRefused" if observed.wants_sleep else "WakeRefused"
        return failed(TYPE, reason, f"pod {refused.name}: {observed.refusals[refused.name]}")
    sleeping = [pod for pod in there if observed.state(pod) is WorkerState.ASLEEP]
    words = f"{len(sleeping)} of {observed.deployment.replicas} workers are asleep"
    if not observed.wants_sleep and any(_is_waking(observed, pod) for pod in there):
        return not_yet(TYPE, WAKING, words)
    if not observed.wants_sleep:
        return _awake(observed)
    if len(sleeping) < observed.deployment.replicas:
        is_settled = there and all(observed.state(pod) in _SETTLED for pod in there)
        return not_yet(TYPE, GOING_TO_SLEEP if is_settled else "Starting", words)
    return holds(TYPE, TYPE, f"{words}; {_savings(list(observed.workers.values()))}")


def _awake(observed: Observed) -> Condition:
    awake = [pod for pod in observed.replicas if observed.state(pod) is WorkerState.READY]
    if len(awake) == observed.deployment.replicas:
        return not_yet(TYPE, AWAKE, "spec.lifecycle.desiredState is Active")
    return not_yet(TYPE, "Starting", "spec.lifecycle.desiredState is Active")


def _is_refused(observed: Observed, pod: Pod) -> bool:
    """Tell whether the pod's worker refused to fall asleep or to wake up."""
    unwilling = {WorkerState.READY, WorkerState.DRAINING} if observed.wants_sleep else {WorkerState.ASLEEP}
    return pod.name in observed.refusals and observed.state(pod) in unwilling


def _is_waking(observed: Observed, pod: Pod) -> bool:
    return observed.state(pod) in {WorkerState.ASLEEP, WorkerState.WAKING}


def _savings(workers: list[Worker]) -> str:
    """Return what the sleep brought, in GiB and seconds."""
    freed = sum(worker.freed_bytes for worker in workers) / 2**30
    kept = sum(worker.residual_bytes for worker in workers) / 2**30
    seconds = max((worker.last_sleep_s for worker in workers), default=0.0)
    return f"freed {freed:.2f} GiB in {seconds:.2f} s, {kept:.2f} GiB stay in use"
