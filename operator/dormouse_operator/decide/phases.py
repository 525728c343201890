"""Where a replica is in its life, and the deployment as a whole. Derived from what is observed, never remembered. Pure.

Pending → Starting → Profiling → Agreeing → Allocating → Active → Draining → Asleep → Waking → Active
Failed, from anywhere, until the kubelet starts the worker anew
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from dormouse_operator.decide.conditions import degraded, ready
from dormouse_operator.decide.conditions.all import Conditions
from dormouse_operator.decide.findings import Findings
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import AT_REST, Pod, WorkerState


class Phase(StrEnum):
    """One word of the status. The first ten are of replicas too, in the order of a life."""

    PENDING = "Pending"
    STARTING = "Starting"
    PROFILING = "Profiling"
    AGREEING = "Agreeing"
    ALLOCATING = "Allocating"
    ACTIVE = "Active"
    DRAINING = "Draining"
    ASLEEP = "Asleep"
    WAKING = "Waking"
    FAILED = "Failed"
    REJECTED = "Rejected"  # the spec is not accepted
    OFF = "Off"  # spec.replicas is 0
    ZERO = "Zero"  # no pod, by order or because nobody calls
    DEGRADED = "Degraded"  # some replicas serve


_BY_STATE: Mapping[WorkerState, Phase] = {
    WorkerState.STARTING: Phase.STARTING,
    WorkerState.LOADING: Phase.PROFILING,
    WorkerState.INITIALIZING: Phase.ALLOCATING,
    WorkerState.DRAINING: Phase.DRAINING,
    WorkerState.WAKING: Phase.WAKING,
    WorkerState.FAILED: Phase.FAILED,
}
_STARTS = {Phase.STARTING, Phase.PROFILING, Phase.AGREEING, Phase.ALLOCATING}
# of replicas; the deployment is called after the first of these that any of them is in
REPLICA_PHASES = (
    Phase.FAILED,
    Phase.WAKING,
    Phase.DRAINING,
    Phase.PENDING,
    Phase.STARTING,
    Phase.PROFILING,
    Phase.AGREEING,
    Phase.ALLOCATING,
    Phase.ASLEEP,
    Phase.ACTIVE,
)


def replica_phase(situation: Situation, findings: Findings, pod: Pod) -> Phase:
    """Return where the replica of this pod is in its life."""
    state = situation.state(pod)
    if pod.has_ended or _has_crashed(pod) or situation.group(pod).looping:
        return Phase.FAILED
    if not situation.group(pod).is_scheduled:
        return Phase.PENDING
    if state is None:
        return Phase.STARTING
    if state is WorkerState.PROFILED:
        return Phase.AGREEING if findings.blocks.agreement is None else Phase.ALLOCATING
    if state in AT_REST:
        return Phase.ASLEEP if situation.wants_sleep or situation.is_spare(pod) else Phase.WAKING
    if state is WorkerState.READY:
        return _phase_with_cache(situation, findings, pod)
    return _BY_STATE[state]


def deployment_phase(situation: Situation, findings: Findings, conditions: Conditions) -> Phase:
    """Return the deployment's state in one word: the first rung that fits."""
    if findings.rejection:
        return Phase.REJECTED
    if situation.wants_no_pod:
        return Phase.ZERO
    if not situation.has_replicas:
        return Phase.OFF
    phases = [replica_phase(situation, findings, pod) for pod in situation.replicas]
    phases += [Phase.PENDING] * (situation.wanted_replicas - len(phases))
    if findings.serving:  # while a roll-out goes on, old pods count too
        return Phase.ACTIVE if conditions[ready.TYPE].is_true else Phase.DEGRADED
    if any(condition.is_failure for condition in conditions.values() if condition.type != degraded.TYPE):
        phases = [Phase.FAILED if phase in _STARTS else phase for phase in phases]
    return next(phase for phase in REPLICA_PHASES if phase in phases)


def _phase_with_cache(situation: Situation, findings: Findings, pod: Pod) -> Phase:
    if situation.wants_sleep or situation.is_spare(pod):
        return Phase.DRAINING
    return Phase.ACTIVE if pod in findings.serving else Phase.ALLOCATING


def _has_crashed(pod: Pod) -> bool:
    return bool(pod.container.exit_code) and not pod.container.is_running
