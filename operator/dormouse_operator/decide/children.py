"""Which children are missing: Service, disruption budget, network policy, pods to create. Pure.

Which pods go is decided in `rollout`. Names of pods are deterministic, so a new pod has to wait until its
predecessor is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from dormouse_operator.decide.actions import (
    Action,
    ApplyDisruptionBudget,
    ApplyInferencePool,
    ApplyNetworkPolicy,
    ApplyRanksService,
    ApplyService,
    CreatePod,
    DeleteDisruptionBudget,
    DeleteInferencePool,
    DeleteNetworkPolicy,
)
from dormouse_operator.decide.membership import rest_of
from dormouse_operator.decide.pools.places import choose_slot, no_place
from dormouse_operator.decide.situation import Situation
from dormouse_operator.manifests import pod_name
from dormouse_operator.model import ChildState, Pod, leader_name
from dormouse_operator.model.pools import Replica


def services(situation: Situation) -> list[Action]:
    """Return what makes the Services what they should be. That of the ranks goes with the deployment."""
    own: list[Action] = [] if situation.service and situation.service.is_current else [ApplyService()]
    if own and _has_pool_too_many(situation):
        own = []  # by its port the Service tells the next pass that there is a pool to delete
    ranks = situation.ranks_service
    is_missing = situation.deployment.parallelism.is_grouped and not (ranks and ranks.is_current)
    return [*own, ApplyRanksService()] if is_missing else own


def disruption_budget(situation: Situation) -> list[Action]:
    """Return what gives more than one replica a budget, and a single one none; somebody else's is left alone.

    A pod under two budgets cannot be evicted at all.
    """
    is_wanted = situation.wanted_replicas > 1
    return keep(situation.budget, is_wanted=is_wanted, apply=ApplyDisruptionBudget(), delete=DeleteDisruptionBudget)


def network_policy(situation: Situation) -> list[Action]:
    """Return what gives a deployment its policy, or takes it where the release wants none; somebody else's is left."""
    is_wanted = situation.release.arrows is not None
    return keep(situation.policy, is_wanted=is_wanted, apply=ApplyNetworkPolicy(), delete=DeleteNetworkPolicy)


def inference_pool(situation: Situation) -> list[Action]:
    """Return what gives a deployment its InferencePool, or takes it. Without its kind, or a way there, nothing is."""
    seen = situation.observed.inference_pool
    if seen is None or not seen.is_known_kind:
        return []
    is_wanted = situation.deployment.serving.inference_pool and situation.release.picker is not None
    if is_wanted and seen.address == "":
        return []  # a pool that leads nowhere helps nobody
    child = situation.inference_pool
    return keep(child, is_wanted=is_wanted, apply=ApplyInferencePool(), delete=DeleteInferencePool)


def _has_pool_too_many(situation: Situation) -> bool:
    pool = situation.inference_pool
    return not situation.deployment.serving.inference_pool and pool is not None and pool.is_ours


def keep(child: ChildState | None, *, is_wanted: bool, apply: Action, delete: Callable[[str], Action]) -> list[Action]:
    """Return what makes a child what it should be, or takes it away by its UID; somebody else's is left alone."""
    if child is None:
        return [apply] if is_wanted else []
    if not child.is_ours:
        return []
    if not is_wanted:
        return [delete(child.uid)]
    return [] if child.is_current else [apply]


def creations(situation: Situation, filled: Collection[int], *, are_parked: bool = False) -> list[CreatePod]:
    """Return the pods that are missing and whose names are free. `filled` are the places that have a pod.

    A group begins when nothing is left of the one before. Those of replicas that nobody asks for are parked.
    """
    places = situation.parked_places if are_parked else range(situation.wanted_replicas)
    taken = {pod.name for pod in situation.pods} | {leader_name(pod.name) for pod in situation.orphans}
    missing = [(index, free_name(situation, index)) for index in places]
    return [
        CreatePod(index, are_parked)
        for index, name in missing
        if index not in filled and name not in taken and not placeless(situation, index)
    ]


def placeless(situation: Situation, index: int) -> str:
    """Return why a replica of a pool's member can have no pod, "" where it can, or is in no pool."""
    member, pool = situation.deployment.placement.pool, situation.observed.pool
    if member is None:
        return ""
    replica, placed = Replica(situation.deployment.key, index), situation.observed.placed
    if pool is None or pool.is_deleting:
        return rest_of(situation.deployment, None).message
    return "" if choose_slot(pool, replica, placed) else no_place(pool, replica, placed)


def free_name(situation: Situation, index: int) -> str:
    """Return the name of the pod to create at a place.

    Another one where the name is not to be had: its pod's engine was swapped, its pod takes no command, says no place
    or is on a node that is lost, or somebody else's pod has it. None that a follower has.
    """
    kept = {pod.name for pod in situation.pods if _keeps_name(situation, pod)}
    followers = {pod.name for pods in situation.observed.followers.values() for pod in pods}
    name, revision = situation.deployment.key.name, situation.revision
    return pod_name(name, revision, index, kept | followers | set(situation.observed.foreign))


def _keeps_name(situation: Situation, pod: Pod) -> bool:
    """Return whether the pod may go only when another one serves, which then has another name."""
    return not situation.is_current(pod) or situation.is_given_up(pod) or pod.index < 0
