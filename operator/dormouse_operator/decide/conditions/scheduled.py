"""Scheduled: every replica has a pod, and every pod a node. Pure."""

from __future__ import annotations

from typing import NamedTuple

from dormouse_operator.decide.children import free_name, placeless
from dormouse_operator.decide.conditions.verdicts import failed, holds, no_replicas, not_yet, unknown
from dormouse_operator.decide.groups import scheduling_ends
from dormouse_operator.decide.membership import POOL_NOT_FOUND
from dormouse_operator.decide.memory_requests import waits_for_memory
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition, Group, Pod, follower_name
from dormouse_operator.parse import parse_bound

TYPE = "Scheduled"
GROUP_BROKEN = "GroupBroken"


class _Refused(NamedTuple):
    """An object that the API server did not take."""

    about: str
    words: str  # the server's


def evaluate(situation: Situation, accepted: Condition) -> Condition:
    """See the module. `accepted` is that condition."""
    wanted, there = situation.wanted_replicas, situation.replicas
    if not accepted.is_true:
        return unknown(TYPE, "NotAccepted", "the spec is not accepted")
    if refused := _refused_pod(situation):
        return _bounded(refused) or failed(TYPE, "PodRejected", f"{refused.about}: {refused.words}")
    if refused := _refused_child(situation):
        return _bounded(refused) or failed(TYPE, "ChildRejected", f"{refused.about}: {refused.words}")
    if off := no_replicas(TYPE, situation):
        return off
    if ended := next((pod for pod in there if pod.has_ended), None):
        return not_yet(TYPE, "PodEnded", f"pod {ended.name} ended: {ended.end_message or 'no reason given'}")
    if broken := next(
        (why for pod in situation.pods if situation.is_wanted(pod) and (why := _breach(situation, pod))), ""
    ):
        return not_yet(TYPE, GROUP_BROKEN, broken)
    if len(there) < wanted and (words := _placeless(situation)):
        return failed(TYPE, "NoPlace" if situation.observed.pool else POOL_NOT_FOUND, words)
    if len(there) < wanted:
        return not_yet(TYPE, "PodsMissing", f"{len(there)} of {wanted} pods exist{_still_ending(situation)}")
    return _groups(situation) if situation.deployment.parallelism.is_grouped else _pods(situation)


def _placeless(situation: Situation) -> str:
    """Return why a replica without a pod gets none on its pool's slots, "" where each will."""
    filled = {pod.index for pod in situation.pods}
    absent = (index for index in range(situation.wanted_replicas) if index not in filled)
    return next((words for index in absent if (words := placeless(situation, index))), "")


def _pods(situation: Situation) -> Condition:
    """Tell of replicas that are one pod each."""
    there = situation.replicas
    if gated := next((pod for pod in there if pod.scheduling_gates), None):
        return _gated(gated)
    if stuck := next((pod for pod in there if pod.unscheduled_message), None):
        return failed(TYPE, "Unschedulable", f"pod {stuck.name}: {stuck.unscheduled_message}")
    if waiting := next((pod for pod in there if not pod.is_scheduled), None):
        return not_yet(TYPE, "WaitingForNode", f"pod {waiting.name} has no node yet")
    if short := waits_for_memory(situation):
        words = f"pod {short.name} cannot have the memory back that it needs awake: {short.memory.complaint}"
        return not_yet(TYPE, "WaitingForMemory", words)
    return holds(TYPE, "Scheduled", f"{len(there)} of {situation.wanted_replicas} pods have a node")


def _groups(situation: Situation) -> Condition:
    """Tell of groups that are not whole: the one whose time is over first, else the first."""
    groups = [situation.group(pod) for pod in situation.replicas]
    wanted = situation.wanted_replicas * situation.deployment.parallelism.pipeline
    there = sum(len(group.members) for group in groups)
    if there < wanted:
        return not_yet(TYPE, "PodsMissing", f"{there} of {wanted} pods exist")
    waiting = [group for group in groups if not group.is_scheduled]
    if gated := next((pod for group in waiting for pod in group.members if pod.scheduling_gates), None):
        return _gated(gated)
    if late := next((group for group in waiting if _is_late(situation, group)), None):
        limit_s = situation.deployment.parallelism.scheduling_deadline_s
        words = (
            f"{_without_node(late)} after {limit_s} s; the youngest waiting group starts again, other groups continue"
        )
        return failed(TYPE, "Unschedulable", words)
    if waiting:
        return not_yet(TYPE, "WaitingForNode", f"{_without_node(waiting[0])} yet")
    return holds(TYPE, "Scheduled", f"{there} of {wanted} pods have a node")


def _gated(pod: Pod) -> Condition:
    """Tell of a pod for which no node is looked for yet, and who holds it."""
    if pod.queue:
        why = "`kubectl get workloads` tells why"
        return not_yet(TYPE, "WaitingForQueue", f"pod {pod.name} waits in the queue {pod.queue}: {why}")
    gates = ", ".join(pod.scheduling_gates)
    return not_yet(TYPE, "SchedulingGated", f"pod {pod.name} has scheduling gates that somebody has to remove: {gates}")


def _is_late(situation: Situation, group: Group) -> bool:
    return not group.leader.queue and situation.now >= scheduling_ends(situation, group.leader)


def _without_node(group: Group) -> str:
    """Name the pods of a group without a node, and what the scheduler says of the first that it speaks of."""
    pods = [pod for pod in group.members if not pod.is_scheduled]
    told = next((f" ({pod.name}: {pod.unscheduled_message})" for pod in pods if pod.unscheduled_message), "")
    names = ", ".join(pod.name for pod in pods)
    return f"group {group.leader.index}: no node for {len(pods)} of {len(group.members)} pods, {names}{told}"


def _breach(situation: Situation, leader: Pod) -> str:
    """Return why a group begins anew, "" if it does not."""
    broken_reason = situation.group(leader).broken_reason
    return f"group {leader.index} ends and starts again: {broken_reason}" if broken_reason else ""


def _bounded(refused: _Refused) -> Condition | None:
    """Tell what a quota or a LimitRange has no room for, None where something else refused it."""
    bound = parse_bound(refused.words)
    return failed(TYPE, bound.reason, f"{refused.about}: {bound.message}") if bound else None


def _refused_pod(situation: Situation) -> _Refused | None:
    """Return the API server's words about a pod that it did not take."""
    present = {pod.name for pod in situation.pods}
    for index in range(situation.wanted_replicas):
        pod = free_name(situation, index)
        if pod not in present and (words := situation.observed.rejections.get(f"Pod {pod}")):
            return _Refused(f"pod {pod}", words)
    forming = (situation.group(leader) for leader in situation.replicas)
    absent = (follower_name(group.leader.name, ordinal) for group in forming for ordinal in group.missing)
    told = ((pod, situation.observed.rejections.get(f"Pod {pod}")) for pod in absent)
    return next((_Refused(f"pod {pod}", words) for pod, words in told if words), None)


def _refused_child(situation: Situation) -> _Refused | None:
    """Name an object whose write the API server refused, and repeat its words. Replicas serve without their spares."""
    parked = {f"Pod {free_name(situation, index)}" for index in situation.parked_places if situation.has_replicas}
    told = sorted(situation.observed.rejections.items())
    return next((_Refused(about, words) for about, words in told if about not in parked), None)


def _still_ending(situation: Situation) -> str:
    """Name the pod whose name is not free yet."""
    ending: Pod | None = next((pod for pod in situation.pods if situation.is_wanted(pod) and pod.is_deleting), None)
    return f"; pod {ending.name} is still ending" if ending else ""
