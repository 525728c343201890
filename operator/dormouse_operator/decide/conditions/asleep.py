"""Asleep: every worker has given its memory back, by order or because nobody calls. Pure."""

from __future__ import annotations

from dormouse_operator.decide.conditions.verdicts import failed, holds, idle_words, no_replicas, not_yet, spare_words
from dormouse_operator.model import WAKEABLE, Condition, Observed, Pod, Worker, WorkerState

TYPE = "Asleep"
WAKING = "Waking"
WAKE_REFUSED = "WakeRefused"
AWAKE = "Awake"
GOING_TO_SLEEP = "GoingToSleep"


def evaluate(observed: Observed) -> Condition:
    """See the module."""
    there = observed.replicas
    if off := no_replicas(TYPE, observed):
        return off
    if refused := next((pod for pod in there if _is_refused(observed, pod)), None):
        reason = "SleepRefused" if observed.wants_sleep else WAKE_REFUSED
        return failed(TYPE, reason, f"pod {refused.name}: {observed.refusals[refused.name]}")
    sleeping = [pod for pod in there if _sleeps(observed, pod)]
    because = f"{idle_words(observed.ladder)}: " if observed.ladder and observed.is_idle else ""
    words = f"{because}{len(sleeping)} of {observed.deployment.replicas} workers are asleep"
    if not observed.wants_sleep and any(_is_waking(observed, pod) for pod in there):
        return not_yet(TYPE, WAKING, words)
    if not observed.wants_sleep:
        return _awake(observed)
    if len(sleeping) < observed.deployment.replicas:
        is_settled = there and all(observed.state(pod) in WAKEABLE for pod in there)
        return not_yet(TYPE, GOING_TO_SLEEP if is_settled else "Starting", words)
    at_level = f"{words} at level {_level(observed, sleeping)}"
    return holds(TYPE, TYPE, f"{at_level}; {_savings(list(observed.workers.values()))}")


def _awake(observed: Observed) -> Condition:
    words = f"spec.lifecycle.desiredState is {observed.deployment.lifecycle.desired_state}"
    awake = [pod for pod in observed.replicas if observed.state(pod) is WorkerState.READY]
    if len(awake) + observed.spare_replicas == observed.deployment.replicas:
        return not_yet(TYPE, AWAKE, words + spare_words(observed))
    return not_yet(TYPE, "Starting", words)


def _is_refused(observed: Observed, pod: Pod) -> bool:
    """Tell whether the pod's worker refused to fall asleep or to wake up."""
    unwilling = {WorkerState.READY, WorkerState.DRAINING} if observed.wants_sleep else {WorkerState.ASLEEP}
    return pod.name in observed.refusals and observed.state(pod) in unwilling and not observed.is_spare(pod)


def _sleeps(observed: Observed, pod: Pod) -> bool:
    """Tell whether the pod's worker sleeps, and as deep as it should if it should."""
    return observed.state(pod) is WorkerState.ASLEEP and not (observed.wants_sleep and observed.is_light(pod))


def _level(observed: Observed, pods: list[Pod]) -> int:
    """Return the least deep level of workers that sleep."""
    return min(worker.sleep_level for pod in pods if (worker := observed.worker(pod)))


def _is_waking(observed: Observed, pod: Pod) -> bool:
    return observed.state(pod) in {WorkerState.ASLEEP, WorkerState.WAKING} and not observed.is_spare(pod)


def _savings(workers: list[Worker]) -> str:
    """Return what the sleep brought, in GiB and seconds."""
    freed = sum(worker.freed_bytes for worker in workers) / 2**30
    kept = sum(worker.residual_bytes for worker in workers) / 2**30
    seconds = max((worker.last_sleep_s for worker in workers), default=0.0)
    return f"freed {freed:.2f} GiB in {seconds:.2f} s, {kept:.2f} GiB stay in use"
