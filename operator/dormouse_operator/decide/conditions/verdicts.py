"""The rungs that all conditions use: True, False for now, failed, Unknown; and who is to blame. Pure."""

from __future__ import annotations

from typing import Literal

from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition, Failure, Ladder, Pod, Rung, WorkerState

RELEASED = "Released"  # its pool's GPUs are the cluster's
MEMORY_FAILURES = {"InsufficientMemory", "MaxModelLenTooLarge"}


def holds(type_: str, reason: str, message: str) -> Condition:
    """It is so."""
    return Condition(type_, "True", reason, message)


def not_yet(type_: str, reason: str, message: str) -> Condition:
    """It is not so; time cures it."""
    return Condition(type_, "False", reason, message)


def failed(type_: str, reason: str, message: str) -> Condition:
    """It is not so, and somebody has to act."""
    return Condition(type_, "False", reason, message, is_failure=True)


def unknown(type_: str, reason: str, message: str) -> Condition:
    """It cannot be told, because an earlier step is missing."""
    return Condition(type_, "Unknown", reason, message)


def no_replicas(type_: str, situation: Situation) -> Condition | None:
    """Return the answer for a deployment that is off, None for one that is on."""
    if situation.has_replicas:
        return None
    if situation.deployment.lifecycle.desired_state == "Zero":
        return unknown(type_, "Zero", "spec.lifecycle.desiredState is Zero: no pod")
    if situation.wants_no_pod:
        return unknown(type_, *no_pod_words(situation))
    return unknown(type_, "NoReplicas", "spec.replicas is 0: no pod and no wake")


def no_pod_words(situation: Situation) -> tuple[str, str]:
    """Return reason and message of a deployment that has no pod because nobody calls."""
    if situation.ladder and situation.rung is Rung.ZERO:
        spares = len(situation.parked_places)
        which = f"no pod but {spares} spare" if spares else "no pod"
        return "Zero", f"{idle_words(situation.ladder)}: {which}; a request brings them back"
    pool = situation.deployment.placement.pool
    return RELEASED, f"GpuPool {pool.name if pool else ''} is released: no pod; a request brings them back"


def nothing_engaged(type_: str, situation: Situation) -> Condition | None:
    """Return the answer where no engine process is there to tell of, None where one is."""
    if off := no_replicas(type_, situation):
        return off
    there = situation.replicas
    if there and not situation.engaged:
        words = f"{len(there)} of {len(there)} workers are in STANDBY: no engine process until one is woken"
        return unknown(type_, "Standby", words)
    return None


def spare_words(situation: Situation) -> str:
    """Return what the replicas do that the load does not ask for, "" if there are none."""
    asleep, away = situation.spare_replicas, 0 if situation.wants_no_pod else situation.num_away
    facts = [f"{asleep} sleep" if asleep else "", f"{away} have no pod" if away else ""]
    told = " and ".join(fact for fact in facts if fact)
    return f"; {told} until the load asks for more" if told else ""


def idle_words(ladder: Ladder) -> str:
    """Return why a deployment sleeps that nobody calls."""
    return f"idle for {ladder.idle_s} s"


def failure_of(situation: Situation, pod: Pod) -> Failure | None:
    """Return why the pod's worker failed."""
    worker = situation.worker(pod)
    if worker is None or worker.state is not WorkerState.FAILED:
        return None
    return worker.failure or Failure("Internal", "the worker gave no reason; see its log")


Stage = Literal["loading", "profiling", "later"]


def first_failed(situation: Situation, stage: Stage) -> tuple[Pod, Failure] | None:
    """Return the first worker that failed in this stage, and why."""
    for pod in situation.replicas:
        failure = failure_of(situation, pod)
        if failure and _stage(situation, pod, failure) == stage:
            return pod, failure
    return None


def _stage(situation: Situation, pod: Pod, failure: Failure) -> Stage:
    if failure.reason in MEMORY_FAILURES:
        return "profiling"
    worker = situation.worker(pod)
    return "later" if worker and worker.report else "loading"
