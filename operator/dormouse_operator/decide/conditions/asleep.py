"""Asleep: every worker has given its memory back, by order or because nobody calls. Pure."""

from __future__ import annotations

from collections.abc import Collection

from dormouse_operator.decide import sleep_levels
from dormouse_operator.decide.conditions.verdicts import failed, holds, idle_words, no_replicas, not_yet, spare_words
from dormouse_operator.decide.membership import rest_of
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import AT_REST, WAKEABLE, Condition, Pod, Worker, WorkerState
from dormouse_operator.model.units import in_gib
from dormouse_operator.model.wanted import STANDBY_LEVEL

TYPE = "Asleep"
WAKING = "Waking"
ENGINE_STARTS = "EngineStarts"
WAKE_REFUSED = "WakeRefused"
AWAKE = "Awake"
GOING_TO_SLEEP = "GoingToSleep"
_STARTING = (WorkerState.STARTING, WorkerState.LOADING, WorkerState.PROFILED, WorkerState.INITIALIZING)


def evaluate(situation: Situation) -> Condition:
    """See the module."""
    there = situation.replicas
    if off := no_replicas(TYPE, situation):
        return off
    if refused := next((pod for pod in there if _is_refused(situation, pod)), None):
        reason = "SleepRefused" if situation.wants_sleep else WAKE_REFUSED
        return failed(TYPE, reason, f"pod {refused.name}: {situation.observed.refusals[refused.name]}")
    sleeping = [pod for pod in there if _sleeps(situation, pod)]
    awake = [pod for pod in there if pod not in sleeping]
    if situation.wants_sleep and (pod := sleep_levels.lacking(situation, awake)):
        lacked = sleep_levels.words([situation.workers[pod.name]])
        return failed(TYPE, "SleepRefused", f"pod {pod.name} is not ordered to level {situation.sleep_level}{lacked}")
    because = f"{idle_words(situation.ladder)}: " if situation.ladder and situation.is_idle else ""
    words = f"{because}{len(sleeping)} of {situation.wanted_replicas} workers are asleep"
    if there and situation.rests_by_pool:
        return _rests(situation)
    if not situation.wants_sleep and any(_starts_again(situation, pod) for pod in there):
        return not_yet(TYPE, ENGINE_STARTS, words)
    if not situation.wants_sleep and any(_is_waking(situation, pod) for pod in there):
        return not_yet(TYPE, WAKING, words)
    if not situation.wants_sleep:
        return _awake(situation)
    if situation.observed.pressure:
        words = f"{words}; {situation.observed.pressure.words}"
    if len(sleeping) < situation.wanted_replicas:
        is_settled = there and all(situation.state(pod) in WAKEABLE for pod in there)
        return not_yet(TYPE, GOING_TO_SLEEP if is_settled else "Starting", words)
    at_level = f"{words} at level {_level(situation, sleeping)}"
    return holds(TYPE, TYPE, f"{at_level}; {_savings(list(situation.workers.values()))}")


def _awake(situation: Situation) -> Condition:
    turn = situation.observed.turn
    words = f"spec.lifecycle.desiredState is {situation.deployment.lifecycle.desired_state}"
    words += f"; {turn.shares}: who is called has it" if turn and not turn.complaint else ""
    words += sleep_levels.words(situation.workers.values())
    awake = [pod for pod in situation.replicas if situation.state(pod) is WorkerState.READY]
    if len(awake) + situation.spare_replicas == situation.wanted_replicas:
        return not_yet(TYPE, AWAKE, words + spare_words(situation))
    return not_yet(TYPE, "Starting", words)


def _rests(situation: Situation) -> Condition:
    """Tell of a member that its pool has asleep, or is putting to sleep."""
    told = rest_of(situation.deployment, situation.observed.pool)
    if leaving := next((pod for pod in situation.replicas if situation.state(pod) not in AT_REST), None):
        return not_yet(TYPE, GOING_TO_SLEEP, f"pod {leaving.name} is not at rest yet; {told.message}")
    level = _level(situation, list(situation.replicas))
    return holds(TYPE, TYPE, f"{told.message}; it sleeps at level {level}")


def _is_refused(situation: Situation, pod: Pod) -> bool:
    """Return whether the pod's worker refused to fall asleep or to wake up."""
    unwilling: Collection[WorkerState] = {WorkerState.READY, WorkerState.DRAINING} if situation.wants_sleep else AT_REST
    return pod.name in situation.observed.refusals and situation.state(pod) in unwilling and not situation.is_spare(pod)


def _sleeps(situation: Situation, pod: Pod) -> bool:
    """Return whether the pod's worker sleeps, and as deep as it should if it should."""
    return situation.state(pod) in AT_REST and not (situation.wants_sleep and situation.is_light(pod))


def _level(situation: Situation, pods: list[Pod]) -> int:
    """Return the least deep level of workers that sleep."""
    # one in STANDBY that has never slept tells no level
    return min(worker.sleep_level or STANDBY_LEVEL for pod in pods if (worker := situation.worker(pod)))


def _is_waking(situation: Situation, pod: Pod) -> bool:
    return situation.state(pod) in {WorkerState.ASLEEP, WorkerState.WAKING} and not situation.is_spare(pod)


def _starts_again(situation: Situation, pod: Pod) -> bool:
    """Return whether the pod's worker leaves STANDBY: its engine starts, which the status knew to be at rest."""
    slept = situation.deployment.recorded.reason(TYPE) in {TYPE, WAKING, ENGINE_STARTS}
    starting = {WorkerState.STANDBY, *(_STARTING if slept else ())}
    return situation.state(pod) in starting and not situation.is_spare(pod)


def _savings(workers: list[Worker]) -> str:
    """Return what the sleep brought, in GiB and seconds."""
    freed = sum(worker.freed_bytes for worker in workers)
    kept = sum(worker.residual_bytes for worker in workers)
    seconds = max((worker.last_sleep_s for worker in workers), default=0.0)
    return f"freed {in_gib(freed)} in {seconds:.2f} s, {in_gib(kept)} stay in use"
