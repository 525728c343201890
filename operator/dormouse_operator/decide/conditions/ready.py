"""Ready: every replica that is wanted awake serves, and the others sleep as they should and can be woken. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from dormouse_operator.decide.conditions import asleep
from dormouse_operator.decide.conditions.verdicts import (
    failed,
    holds,
    idle_words,
    no_pod_words,
    not_yet,
    spare_words,
)
from dormouse_operator.decide.findings import Findings
from dormouse_operator.decide.membership import ASLEEP, rest_of
from dormouse_operator.decide.rollout.inventory import is_rolling_out
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import WAKEABLE, Condition, Pod
from dormouse_operator.parse import format_time

TYPE = "Ready"
WAITS_FOR_NEIGHBOUR = "WaitsForNeighbour"


def evaluate(situation: Situation, findings: Findings, earlier: Iterable[Condition], sleep: Condition) -> Condition:
    """See the module. `earlier` are the conditions on the way to serve, in order; `sleep` is Asleep."""
    wanted, there = situation.wanted_replicas, situation.replicas
    if situation.deployment.lifecycle.desired_state == "Zero":
        return holds(TYPE, "Zero", "no pod, by order; spec.lifecycle.desiredState brings them back")
    if situation.wants_no_pod:
        return holds(TYPE, *no_pod_words(situation))
    if situation.wants_sleep and len(there) == wanted > 0 and all(situation.state(pod) in WAKEABLE for pod in there):
        return _sleeps(situation)
    if _is_resting(situation) and (told := rest_of(situation.deployment, situation.observed.pool)):
        if told.reason == ASLEEP:
            return holds(TYPE, ASLEEP, told.message)
        return (failed if told.is_failure else not_yet)(TYPE, told.reason, told.message)
    if sleep.reason in {asleep.WAKING, asleep.WAKE_REFUSED, asleep.ENGINE_STARTS}:
        return not_yet(TYPE, sleep.reason, sleep.message)
    serve = min(len(findings.serving), wanted)
    words = f"{serve} of {situation.deployment.replicas} replicas serve{spare_words(situation)}"
    if _is_rolled_out_around(situation, findings):
        return holds(TYPE, "Serving", f"{words}; a roll-out is going on")
    if missing := next((condition for condition in earlier if not condition.is_true), None):
        make = failed if missing.is_failure else not_yet
        return make(TYPE, missing.reason, missing.message)
    if len(findings.serving) + situation.spare_replicas < wanted:
        return not_yet(TYPE, "PodsNotReady", f"{words}{_missing(situation, findings)}")
    return holds(TYPE, "Serving", words)


def _sleeps(situation: Situation) -> Condition:
    """Tell of a deployment whose replicas all sleep, or are about to."""
    wanted, turn = situation.wanted_replicas, situation.observed.turn
    if turn and turn.waits_for:
        return not_yet(TYPE, WAITS_FOR_NEIGHBOUR, f"{turn.shares}; called, it waits until {turn.waits_for} sleeps")
    why, how = (idle_words(situation.ladder), "a request wakes them") if situation.ladder else ("by order", "")
    words = f"{wanted} of {wanted} replicas sleep or are about to, {why}; {how or 'they can be woken'}"
    return holds(TYPE, "Asleep", words)


def _is_resting(situation: Situation) -> bool:
    """Return whether all pods are there, and their pool has all of them asleep, or lets none of them wake."""
    there = situation.replicas
    is_whole = len(there) == situation.wanted_replicas > 0 and all(situation.state(pod) in WAKEABLE for pod in there)
    return situation.rests_by_pool and is_whole


def _missing(situation: Situation, findings: Findings) -> str:
    """Name the first pod that should serve and does not, and say why."""
    serve = {pod.name for pod in findings.serving}
    idle = (pod for pod in situation.replicas if pod.name not in serve and not situation.is_spare(pod))
    return next((f"; pod {pod.name}: {_why_not(situation, pod)}" for pod in idle), "")


def _why_not(situation: Situation, pod: Pod) -> str:
    """Return why a pod does not serve whose worker has answered: one that has not is told by an earlier condition."""
    if not pod.gate_open:
        return f"its readiness gate is not open yet; its worker is {situation.state(pod)}"
    since = f" since {format_time(pod.ready_since)}" if pod.ready_since and not pod.is_ready else ""
    return f"its readiness probe fails{since}; its worker says that it is {situation.state(pod)}"


def _is_rolled_out_around(situation: Situation, findings: Findings) -> bool:
    """Return whether old and new pods together serve as many as are wanted: nobody misses the new ones."""
    is_enough = len(findings.serving) + len(situation.spares) >= situation.wanted_replicas > 0
    return is_enough and not findings.rejection and is_rolling_out(situation, findings.standing)
