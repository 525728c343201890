"""The PodDisruptionBudget of a deployment: a drain takes one replica at a time, and any that serves nobody. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_operator.manifests.common import Manifest, labels_of, metadata_of, selector_labels
from dormouse_operator.model import BudgetState, Deployment


def budget_manifest(deployment: Deployment, num_spares: int = 0) -> Manifest:
    """Return the budget. A pod that is asleep or loads is not ready: AlwaysAllow lets it go, whatever the others do.

    `num_spares` sleep while others serve: they are no reason to keep those.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata_of(deployment, deployment.key.name, labels_of(deployment)),
        "spec": {
            "maxUnavailable": 1 + num_spares,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector_labels(deployment.key.name)},
        },
    }


def parse_budget(raw: Mapping[str, Any] | None, deployment: Deployment, num_spares: int = 0) -> BudgetState | None:
    """Compare the budget of the deployment's name with what we would apply."""
    if raw is None:
        return None
    wanted, metadata, spec = budget_manifest(deployment, num_spares), raw["metadata"], raw.get("spec") or {}
    return BudgetState(
        uid=metadata["uid"],
        is_ours=any(owner["uid"] == deployment.uid for owner in metadata.get("ownerReferences") or ()),
        is_current=all(spec.get(field) == value for field, value in wanted["spec"].items())
        and wanted["metadata"]["labels"].items() <= (metadata.get("labels") or {}).items(),
    )
