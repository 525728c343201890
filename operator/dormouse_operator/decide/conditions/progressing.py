"""Progressing: the pods are as the spec wants them, or on the way there. Pure."""

from __future__ import annotations

from dormouse_operator.decide.conditions.verdicts import failed, holds, not_yet, unknown
from dormouse_operator.decide.findings import Findings
from dormouse_operator.decide.rollout.change import Change, change_of
from dormouse_operator.decide.rollout.inventory import Standing, is_available, is_exchanging
from dormouse_operator.decide.rollout.limits import may_surge
from dormouse_operator.decide.rollout.stall import (
    COMPLETE,
    CONDITION,
    DEADLINE_EXCEEDED,
    is_complete,
    is_late,
)
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition

TYPE = CONDITION
RECREATING = "Recreating"
_REMEDY = "the old pods serve on; change the spec, or apply the old one again to return to it"


def evaluate(situation: Situation, findings: Findings) -> Condition:
    """See the module."""
    standing, stop = findings.standing, findings.stall
    if findings.rejection:
        return unknown(TYPE, "NotAccepted", "the spec is not accepted")
    if stop:
        is_told = stop.message.endswith(_REMEDY)  # taken from the recorded condition
        words = stop.message if is_told else f"revision {situation.revision} stopped: {stop.message}; {_REMEDY}"
        return failed(TYPE, stop.reason, words)
    if is_complete(situation, standing):
        return holds(TYPE, COMPLETE, f"all pods are of revision {situation.revision}")
    available = sum(is_available(situation, pod) for pod in standing.new)
    words = f"{available} of {situation.wanted_replicas} replicas of revision {situation.revision} are there"
    if is_late(situation, standing):
        limit_s = situation.deployment.rollout.progress_deadline_s
        return not_yet(TYPE, DEADLINE_EXCEEDED, f"no progress for {limit_s} s: {words}")
    if not is_exchanging(situation, standing):
        return holds(TYPE, "Starting", words)
    return _moving(situation, standing, words)


def _moving(situation: Situation, standing: Standing, words: str) -> Condition:
    """Tell how the exchange is done, and why not otherwise."""
    if may_surge(situation.deployment):
        return holds(TYPE, "Surging", words)
    if situation.deployment.rollout.strategy == "Surge":
        why = "a slot of a pool has room for one pod of each replica"
        return holds(TYPE, RECREATING, f"{why}: each pod is deleted first, then created; {words}")
    if group := next((pod for pod in standing.old if pod.group_size > 1), None):
        why = f"SleepSwap cannot exchange the engine of a group of {group.group_size} pods"
        return holds(TYPE, RECREATING, f"{why}: each group is deleted first, then created; {words}")
    if any(change_of(situation, pod) is Change.POD for pod in standing.old):
        why = "SleepSwap cannot change image, device, resources or volumes of a pod"
        return holds(TYPE, RECREATING, f"{why}: each pod is deleted first, then created; {words}")
    return holds(TYPE, "Swapping", words)
