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
from dormouse_operator.model import WAKEABLE, Condition, Observed, Pod
from dormouse_operator.parse import format_time

TYPE = "Ready"
_EARLIER = (accepted, scheduled, model_loaded, memory_profiled, blocks_agreed, cache_allocated)


def serving(observed: Observed) -> list[Pod]:
    """Return the pods that serve, those of an older revision included."""
    return [
        pod
        for pod in observed.pods
        if pod.owner_uid == observed.deployment.uid
        and not (pod.is_deleting or pod.has_ended or observed.wants_sleep or observed.is_spare(pod))
        and not observed.group(pod).broken_reason
        and is_available(observed, pod)
    ]


def evaluate(observed: Observed) -> Condition:
    """See the module."""
    wanted, there = observed.deployment.replicas, observed.replicas
    if observed.ladder and observed.wants_no_pod:
        return holds(TYPE, "Zero", f"{idle_words(observed.ladder)}: no pod; a request brings them back")
    if observed.wants_no_pod:
        return holds(TYPE, "Zero", "no pod, by order; spec.lifecycle.desiredState brings them back")
    if observed.wants_sleep and len(there) == wanted > 0 and all(observed.state(pod) in WAKEABLE for pod in there):
        why, how = (idle_words(observed.ladder), "a request wakes them") if observed.ladder else ("by order", "")
        words = f"{wanted} of {wanted} replicas sleep or are about to, {why}; {how or 'they can be woken'}"
        return holds(TYPE, "Asleep", words)
    if (sleep := asleep.evaluate(observed)).reason in {asleep.WAKING, asleep.WAKE_REFUSED}:
        return not_yet(TYPE, sleep.reason, sleep.message)
    words = (
        f"{min(len(serving(observed)), wanted)} of {wanted + observed.num_away} replicas serve{spare_words(observed)}"
    )
    if _is_rolled_out_around(observed):
        return holds(TYPE, "Serving", f"{words}; a roll-out is going on")
    for step in _EARLIER:
        missing = step.evaluate(observed)
        if not missing.is_true:
            make = failed if missing.is_failure else not_yet
            return make(TYPE, missing.reason, missing.message)
    if len(serving(observed)) + observed.spare_replicas < wanted:
        return not_yet(TYPE, "PodsNotReady", f"{words}{_missing(observed)}")
    return holds(TYPE, "Serving", words)


def _missing(observed: Observed) -> str:
    """Name the first pod that should serve and does not, and say why."""
    serve = {pod.name for pod in serving(observed)}
    idle = (pod for pod in observed.replicas if pod.name not in serve and not observed.is_spare(pod))
    return next((f"; pod {pod.name}: {_why_not(observed, pod)}" for pod in idle), "")


def _why_not(observed: Observed, pod: Pod) -> str:
    """Return why a pod does not serve whose worker has answered: one that has not is told by an earlier condition."""
    if not pod.gate_open:
        return f"its readiness gate is not open yet; its worker is {observed.state(pod)}"
    since = f" since {format_time(pod.ready_since)}" if pod.ready_since and not pod.is_ready else ""
    return f"its readiness probe fails{since}; its worker says that it is {observed.state(pod)}"


def _is_rolled_out_around(observed: Observed) -> bool:
    """Tell whether old and new pods together serve as many as are wanted: what is missing of the new, nobody misses."""
    is_enough = len(serving(observed)) + len(observed.spares) >= observed.deployment.replicas > 0
    return is_enough and not rejection(observed) and is_rolling_out(observed, classify_pods(observed))
