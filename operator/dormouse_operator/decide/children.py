"""Which children are missing: Service, disruption budget, network policy, pods to create. Pure.

Which pods go is decided in `rollout`. Names of pods are deterministic, so a new pod has to wait until its
predecessor is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from dormouse_operator.decide.actions import (
    Action,
    ApplyDisruptionBudget,
    ApplyNetworkPolicy,
    ApplyRanksService,
    ApplyService,
    CreatePod,
    DeleteDisruptionBudget,
    DeleteNetworkPolicy,
)
from dormouse_operator.manifests import pod_name
from dormouse_operator.model import ChildState, Observed, Pod, leader_name


def services(observed: Observed) -> list[Action]:
    """Return what makes the Services what they should be. That of the ranks goes with the deployment."""
    own: list[Action] = [] if observed.service and observed.service.is_current else [ApplyService()]
    if not observed.deployment.parallelism.is_grouped or (observed.ranks_service and observed.ranks_service.is_current):
        return own
    return [*own, ApplyRanksService()]


def disruption_budget(observed: Observed) -> list[Action]:
    """Return what gives more than one replica a budget, and a single one none; somebody else's is left alone.

    A pod under two budgets can not be evicted at all.
    """
    is_wanted = observed.deployment.replicas > 1
    return _keep(observed.budget, is_wanted=is_wanted, apply=ApplyDisruptionBudget(), delete=DeleteDisruptionBudget)


def network_policy(observed: Observed) -> list[Action]:
    """Return what gives a deployment its policy, or takes it where the release wants none; somebody else's is left."""
    is_wanted = observed.arrows is not None
    return _keep(observed.policy, is_wanted=is_wanted, apply=ApplyNetworkPolicy(), delete=DeleteNetworkPolicy)


def _keep(child: ChildState | None, *, is_wanted: bool, apply: Action, delete: Callable[[str], Action]) -> list[Action]:
    """Return what makes a child what it should be, or takes it away by its UID; somebody else's is left alone."""
    if child is None:
        return [apply] if is_wanted else []
    if not child.is_ours:
        return []
    if not is_wanted:
        return [delete(child.uid)]
    return [] if child.is_current else [apply]


def creations(observed: Observed, filled: Collection[int]) -> list[CreatePod]:
    """Return the pods that are missing and whose names are free. `filled` are the places that have a pod.

    A group begins when nothing is left of the one before.
    """
    taken = {pod.name for pod in observed.pods} | {leader_name(pod.name) for pod in observed.orphans}
    missing = [(index, free_name(observed, index)) for index in range(observed.deployment.replicas)]
    return [CreatePod(index) for index, name in missing if index not in filled and name not in taken]


def free_name(observed: Observed, index: int) -> str:
    """Return the name of the pod to create at a place.

    Another one where the name is not to be had: its pod's engine was swapped, its pod takes no command, says no place
    or is on a node that is lost, or somebody else's pod has it. None that a follower has.
    """
    kept = {pod.name for pod in observed.pods if _keeps_name(observed, pod)}
    followers = {pod.name for pods in observed.followers.values() for pod in pods}
    name, revision = observed.deployment.key.name, observed.revision
    return pod_name(name, revision, index, kept | followers | set(observed.foreign))


def _keeps_name(observed: Observed, pod: Pod) -> bool:
    """Tell whether the pod may go only when another one serves, which then has another name."""
    return not observed.is_current(pod) or observed.is_given_up(pod) or pod.index < 0
