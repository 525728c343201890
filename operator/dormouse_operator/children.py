"""Which children are missing: the Service, pods to create. Which pods go is decided in `rollout`. Pure.

Names of pods are deterministic, so a new pod has to wait until its predecessor is gone.
"""

from __future__ import annotations

from collections.abc import Collection

from dormouse_operator.actions import Action, ApplyService, CreatePod
from dormouse_operator.manifests import pod_name
from dormouse_operator.model import Observed


def service(observed: Observed) -> list[Action]:
    """Return what makes the Service what it should be."""
    return [] if observed.service and observed.service.is_current else [ApplyService()]


def creations(observed: Observed, filled: Collection[int]) -> list[CreatePod]:
    """Return the pods that are missing and whose names are free. `filled` are the places that have a pod."""
    taken = {pod.name for pod in observed.pods}
    missing = [(index, free_name(observed, index)) for index in range(observed.deployment.replicas)]
    return [CreatePod(index) for index, name in missing if index not in filled and name not in taken]


def free_name(observed: Observed, index: int) -> str:
    """Return the name of the pod to create at a place. Where a pod has it whose engine was swapped, another one."""
    swapped = {pod.name for pod in observed.pods if pod.revision != observed.revision}
    return pod_name(observed.deployment.key.name, observed.revision, index, swapped)
