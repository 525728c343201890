"""Ready: every replica that is wanted awake serves, and the others sleep as they should and can be woken. Pure."""

from __future__ import annotations

from dormouse_operator.decide.conditions import (
    accepted,
    asleep,
    blocks_agreed,
    cache_allocated,
    memory_profiled,
    model_loaded,
    scheduled,
)
from dormouse_operator.decide.conditions.accepted import rejection
from dormouse_operator.decide.conditions.verdicts import failed, holds, idle_words, not_yet, spare_words
from dormouse_operator.decide.rollout.inventory import classify_pods, is_available, is_rolling_out
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import WAKEABLE, Condition, Pod
from dormouse_operator.parse import format_time

TYPE = "Ready"
_EARLIER = (accepted, scheduled, model_loaded, memory_profiled, blocks_agreed, cache_allocated)


def serving(situation: Situation) -> list[Pod]:
    """Return the pods that serve, those of an older revision included."""
    return [
        pod
        for pod in situation.pods
        if pod.owner_uid == situation.deployment.uid
        and not (pod.is_deleting or pod.has_ended or situation.wants_sleep or situation.is_spare(pod))
        and not situation.group(pod).broken_reason
        and is_available(situation, pod)
    ]


def evaluate(situation: Situation) -> Condition:
    """See the module."""
    wanted, there = situation.wanted_replicas, situation.replicas
    if situation.ladder and situation.wants_no_pod:
        return holds(TYPE, "Zero", f"{idle_words(situation.ladder)}: no pod; a request brings them back")
    if situation.wants_no_pod:
        return holds(TYPE, "Zero", "no pod, by order; spec.lifecycle.desiredState brings them back")
    if situation.wants_sleep and len(there) == wanted > 0 and all(situation.state(pod) in WAKEABLE for pod in there):
        why, how = (idle_words(situation.ladder), "a request wakes them") if situation.ladder else ("by order", "")
        words = f"{wanted} of {wanted} replicas sleep or are about to, {why}; {how or 'they can be woken'}"
        return holds(TYPE, "Asleep", words)
    if (sleep := asleep.evaluate(situation)).reason in {asleep.WAKING, asleep.WAKE_REFUSED}:
        return not_yet(TYPE, sleep.reason, sleep.message)
    serve = min(len(serving(situation)), wanted)
    words = f"{serve} of {situation.deployment.replicas} replicas serve{spare_words(situation)}"
    if _is_rolled_out_around(situation):
        return holds(TYPE, "Serving", f"{words}; a roll-out is going on")
    for step in _EARLIER:
        missing = step.evaluate(situation)
        if not missing.is_true:
            make = failed if missing.is_failure else not_yet
            return make(TYPE, missing.reason, missing.message)
    if len(serving(situation)) + situation.spare_replicas < wanted:
        return not_yet(TYPE, "PodsNotReady", f"{words}{_missing(situation)}")
    return holds(TYPE, "Serving", words)


def _missing(situation: Situation) -> str:
    """Name the first pod that should serve and does not, and say why."""
    serve = {pod.name for pod in serving(situation)}
    idle = (pod for pod in situation.replicas if pod.name not in serve and not situation.is_spare(pod))
    return next((f"; pod {pod.name}: {_why_not(situation, pod)}" for pod in idle), "")


def _why_not(situation: Situation, pod: Pod) -> str:
    """Return why a pod does not serve whose worker has answered: one that has not is told by an earlier condition."""
    if not pod.gate_open:
        return f"its readiness gate is not open yet; its worker is {situation.state(pod)}"
    since = f" since {format_time(pod.ready_since)}" if pod.ready_since and not pod.is_ready else ""
    return f"its readiness probe fails{since}; its worker says that it is {situation.state(pod)}"


def _is_rolled_out_around(situation: Situation) -> bool:
    """Tell whether old and new pods together serve as many as are wanted: what is missing of the new, nobody misses."""
    is_enough = len(serving(situation)) + len(situation.spares) >= situation.wanted_replicas > 0
    return is_enough and not rejection(situation) and is_rolling_out(situation, classify_pods(situation))
