"""What every child of a deployment carries: labels, the owner, who writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dormouse_api.names import (
    API_VERSION,
    COMPONENT_FOLLOWER,
    COMPONENT_WORKER,
    KIND,
    LABEL_COMPONENT,
    LABEL_DEPLOYMENT,
)
from dormouse_operator.model import Deployment, SecretKey
from dormouse_operator.parse import CONTAINER

FIELD_MANAGER = "dormouse-operator"
GRACE_AFTER_DRAIN_S = 15  # for the end of the processes once the requests are done or had their time

LABEL_INSTANCE = "app.kubernetes.io/instance"  # what a pod serves as: its deployment, or the one it is a canary of

Manifest = dict[str, Any]


def selector_labels(deployment: str) -> dict[str, str]:
    """Return the labels that all worker pods of a deployment, and nothing else, carry."""
    return {LABEL_DEPLOYMENT: deployment, LABEL_COMPONENT: COMPONENT_WORKER}


def group_pods_selector(name: str, *more: str) -> Manifest:
    """Return the label selector that takes all pods of a deployment, also those that follow in its groups, and more."""
    components = {"key": LABEL_COMPONENT, "operator": "In", "values": [COMPONENT_WORKER, COMPONENT_FOLLOWER, *more]}
    return {"matchLabels": {LABEL_DEPLOYMENT: name}, "matchExpressions": [components]}


def selector_text(deployment: str) -> str:
    """Return the selector as the API server takes it."""
    return ",".join(f"{key}={value}" for key, value in selector_labels(deployment).items())


def labels_of(deployment: Deployment) -> dict[str, str]:
    """Return the labels of everything that the operator makes for a deployment."""
    return {
        "app.kubernetes.io/name": "dormouse",
        LABEL_INSTANCE: deployment.key.name,
        "app.kubernetes.io/part-of": "dormouse",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        **selector_labels(deployment.key.name),
    }


def metadata_of(deployment: Deployment, name: str, labels: Mapping[str, str]) -> Manifest:
    """Return the metadata of a child: it goes with its deployment."""
    return {
        "name": name,
        "namespace": deployment.key.namespace,
        "labels": dict(labels),
        "ownerReferences": [{**owner_of(deployment), "controller": True}],
    }


def is_owned(metadata: Mapping[str, Any], deployment: Deployment) -> bool:
    """Return whether an object names this very deployment among its owners."""
    return any(owner["uid"] == deployment.uid for owner in metadata.get("ownerReferences") or ())


def owner_of(deployment: Deployment) -> Manifest:
    """Return the deployment as an owner reference: what has owners goes with the last of them."""
    return owner_reference(deployment.key.name, deployment.uid)


def owner_reference(name: str, uid: str) -> Manifest:
    """Return an owner reference to the InferenceDeployment of this name and UID."""
    return {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": uid}


def secret_variable(name: str, secret: SecretKey | None) -> list[Manifest]:
    """Return a container's variable with a Secret's value, none without one; the kubelet waits until it is there."""
    if secret is None:
        return []
    return [{"name": name, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}}]


def with_variables(containers: Iterable[Manifest], variables: Mapping[str, str]) -> list[Manifest]:
    """Return a pod's containers, the worker's with these variables; what a template said of them goes."""
    added = [{"name": name, "value": value} for name, value in variables.items()]
    return [
        {**each, "env": [*(item for item in each.get("env") or () if item.get("name") not in variables), *added]}
        if each["name"] == CONTAINER
        else each
        for each in containers
    ]
