"""What to do next: Observed → actions. Pure, stores nothing; after a crash it gives the same answer.

Each pass plans at most one step per replica, and every step can be repeated without harm:

    no pod:          create → (it loads and profiles) → the count is agreed → initialise the cache → open the gate
    order to sleep:  close the gate → drain → all replicas sleep together
    order to wake:   wake up → open the gate

What makes it hard: (1) a worker that serves must not lose its requests because a newcomer reported less: such workers
are taken out of the Service one at a time, and re-initialised when idle. (2) names of pods are deterministic, so a new
pod has to wait until its predecessor is gone. (3) whoever sleeps holds no cache, yet its count still binds the others.
"""

from __future__ import annotations

from dormouse_operator import capacity, children, sleep
from dormouse_operator.actions import POLL_S, Action, Plan
from dormouse_operator.capacity import Agreement
from dormouse_operator.conditions.accepted import rejection
from dormouse_operator.model import Observed, WorkerState
from dormouse_operator.replica import next_step

_CHANGING = {
    WorkerState.STARTING,
    WorkerState.LOADING,
    WorkerState.INITIALIZING,
    WorkerState.DRAINING,
    WorkerState.WAKING,
}


def plan(observed: Observed) -> Plan:
    """Return what to do now. A deployment that is not accepted, or is being deleted, is left as it is."""
    if observed.deployment.is_deleting or rejection(observed):
        return Plan()
    agreement = capacity.agree(observed)
    actions: list[Action] = [
        *children.service(observed),
        *children.disruption_budget(observed),
        *children.removals(observed),
        *children.creations(observed),
    ]
    for pod in observed.replicas:
        step = next_step(observed, pod, agreement)
        actions += [step] if step else []
    actions += sleep.steps(observed)
    return Plan(tuple(actions), _requeue_after_s(observed, agreement))


def _requeue_after_s(observed: Observed, agreement: Agreement | None) -> float | None:
    """Return when to look again. Changes of pods are told by the watch; what a worker does by itself is not."""
    asked = [pod for pod in observed.replicas if pod.can_be_asked]
    if any(observed.state(pod) in _CHANGING or observed.state(pod) is None for pod in asked):
        return POLL_S
    ends = capacity.waiting_ends(observed)
    if agreement is None and ends is not None and capacity.reports(observed):
        return max(0.0, (ends - observed.now).total_seconds())
    return None
