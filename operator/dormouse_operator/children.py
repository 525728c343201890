"""Which children are missing and which are too many: Service, disruption budget, pods. Pure.

Names of pods are deterministic, so a new pod has to wait until its predecessor is gone.
"""

from __future__ import annotations

from dormouse_operator.actions import (
    Action,
    ApplyDisruptionBudget,
    ApplyService,
    CreatePod,
    DeleteDisruptionBudget,
    DeletePod,
)
from dormouse_operator.manifests import pod_name
from dormouse_operator.model import Observed


def service(observed: Observed) -> list[Action]:
    """Return what makes the Service what it should be."""
    return [] if observed.service and observed.service.is_current else [ApplyService()]


def disruption_budget(observed: Observed) -> list[Action]:
    """Return what gives more than one replica a budget, and a single one none; somebody else's is left alone.

    A pod under two budgets can not be evicted at all.
    """
    budget, is_wanted = observed.budget, observed.deployment.replicas > 1
    if budget is None:
        return [ApplyDisruptionBudget()] if is_wanted else []
    if not budget.is_ours:
        return []
    if not is_wanted:
        return [DeleteDisruptionBudget(budget.uid)]
    return [] if budget.is_current else [ApplyDisruptionBudget()]


def removals(observed: Observed) -> list[Action]:
    """Return the pods that nobody wants, and those that ended and will never run again (evicted, for example)."""
    gone = [pod for pod in observed.pods if not observed.is_wanted(pod) or pod.has_ended]
    return [DeletePod(pod) for pod in gone if not pod.is_deleting]


def creations(observed: Observed) -> list[Action]:
    """Return the pods that are missing and whose names are free."""
    taken = {pod.name for pod in observed.pods}
    name, revision = observed.deployment.key.name, observed.revision
    missing = (i for i in range(observed.deployment.replicas) if pod_name(name, revision, i) not in taken)
    return [CreatePod(index) for index in missing]
