"""The PodDisruptionBudget of a deployment: a drain takes one replica at a time, and any that serves nobody. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_operator.manifests.common import (
    Manifest,
    group_pods_selector,
    is_owned,
    labels_of,
    metadata_of,
    selector_labels,
)
from dormouse_operator.model import ChildState, Deployment


def budget_manifest(deployment: Deployment, wanted_replicas: int, *, num_spares: int = 0) -> Manifest:
    """Return the budget. A pod that is asleep or loads is not ready: AlwaysAllow lets it go, whatever the others do.

    `num_spares` replicas sleep while others serve, and others are not wanted now: they are no reason to keep those that
    serve, though Kubernetes takes from the replicas of the spec how many have to stay.
    Whoever takes a pod of a group takes the group. So where there are groups all pods but one have to stay: the next
    eviction is for when the group of the last one is whole again.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata_of(deployment, deployment.key.name, labels_of(deployment)),
        "spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow", **_limit(deployment, wanted_replicas, num_spares)},
    }


def _limit(deployment: Deployment, wanted_replicas: int, num_spares: int) -> Manifest:
    name = deployment.key.name
    if not deployment.parallelism.is_grouped:
        num_away = deployment.replicas - wanted_replicas
        return {"maxUnavailable": 1 + num_spares + num_away, "selector": {"matchLabels": selector_labels(name)}}
    return {
        "minAvailable": (wanted_replicas - num_spares) * deployment.parallelism.pipeline - 1,
        "selector": group_pods_selector(name),
    }


def parse_budget(
    raw: Mapping[str, Any] | None, deployment: Deployment, wanted_replicas: int, *, num_spares: int = 0
) -> ChildState | None:
    """Compare the budget of the deployment's name with what we would apply."""
    if raw is None:
        return None
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    wanted = budget_manifest(deployment, wanted_replicas, num_spares=num_spares)
    return ChildState(
        uid=metadata["uid"],
        is_ours=is_owned(metadata, deployment),
        is_current=all(spec.get(field) == value for field, value in wanted["spec"].items())
        and wanted["metadata"]["labels"].items() <= (metadata.get("labels") or {}).items(),
    )
