"""Scheduled: every replica has a pod, and every pod a node. Pure."""

from __future__ import annotations

from dormouse_operator.children import free_name
from dormouse_operator.conditions.accepted import rejection
from dormouse_operator.conditions.ladder import failed, holds, no_replicas, not_yet, unknown
from dormouse_operator.model import Condition, Observed, Pod

TYPE = "Scheduled"


def evaluate(observed: Observed) -> Condition:
    """See the module."""
    wanted, there = observed.deployment.replicas, observed.replicas
    if rejection(observed):
        return unknown(TYPE, "NotAccepted", "the spec is not accepted")
    if off := no_replicas(TYPE, observed):
        return off
    if refused := _refused_pod(observed):
        return failed(TYPE, "PodRejected", refused)
    if words := observed.refusals.get(""):
        return failed(TYPE, "ChildRejected", words)
    if ended := next((pod for pod in there if pod.has_ended), None):
        return not_yet(TYPE, "PodEnded", f"pod {ended.name} ended: {ended.end_message or 'no reason given'}")
    if len(there) < wanted:
        return not_yet(TYPE, "PodsMissing", f"{len(there)} of {wanted} pods exist{_still_ending(observed)}")
    if stuck := next((pod for pod in there if pod.unscheduled_message), None):
        return failed(TYPE, "Unschedulable", f"pod {stuck.name}: {stuck.unscheduled_message}")
    if waiting := next((pod for pod in there if not pod.is_scheduled), None):
        return not_yet(TYPE, "WaitingForNode", f"pod {waiting.name} has no node yet")
    return holds(TYPE, "Scheduled", f"{len(there)} of {wanted} pods have a node")


def _refused_pod(observed: Observed) -> str:
    """Return the API server's words about a pod that it did not take."""
    present = {pod.name for pod in observed.pods}
    for index in range(observed.deployment.replicas):
        pod = free_name(observed, index)
        if pod not in present and pod in observed.refusals:
            return f"pod {pod}: {observed.refusals[pod]}"
    return ""


def _still_ending(observed: Observed) -> str:
    """Name the pod whose name is not free yet."""
    ending: Pod | None = next((pod for pod in observed.pods if observed.is_wanted(pod) and pod.is_deleting), None)
    return f"; pod {ending.name} is still ending" if ending else ""
