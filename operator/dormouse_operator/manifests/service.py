"""The Service of a deployment: what it is, and whether the one that stands there is it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_api.names import INFERENCE_PORT
from dormouse_operator.manifests.common import Manifest, is_owned, labels_of, metadata_of, selector_labels
from dormouse_operator.manifests.group import ranks_service_manifest
from dormouse_operator.manifests.inference_pool import http_service_port
from dormouse_operator.model import Deployment, ServiceState

_EARLY = "publishNotReadyAddresses"


def service_manifest(deployment: Deployment) -> Manifest:
    """Return the Service that spreads calls over the workers that serve."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata_of(deployment, deployment.key.name, labels_of(deployment)),
        "spec": {
            "type": "ClusterIP",
            "selector": selector_labels(deployment.key.name),
            "ports": [
                {
                    "name": "grpc",
                    "port": INFERENCE_PORT,
                    "targetPort": "grpc",
                    "protocol": "TCP",
                    "appProtocol": "kubernetes.io/h2c",
                },
                *([http_service_port()] if deployment.serving.inference_pool else []),
            ],
        },
    }


def parse_service(raw: Mapping[str, Any] | None, deployment: Deployment) -> ServiceState | None:
    """Compare the Service of the deployment's name with what we would apply."""
    return _compare(raw, service_manifest(deployment), deployment)


def parse_ranks_service(raw: Mapping[str, Any] | None, deployment: Deployment) -> ServiceState | None:
    """Compare the Service under which the pods of groups find each other with what we would apply."""
    return _compare(raw, ranks_service_manifest(deployment), deployment)


def _compare(raw: Mapping[str, Any] | None, wanted: Manifest, deployment: Deployment) -> ServiceState | None:
    if raw is None:
        return None
    return ServiceState(
        is_ours=is_owned(raw["metadata"], deployment),
        is_current=bool(raw["spec"].get(_EARLY)) == bool(wanted["spec"].get(_EARLY))
        and raw["spec"].get("selector") == wanted["spec"]["selector"]
        and [_port(port) for port in raw["spec"].get("ports") or ()] == [_port(p) for p in wanted["spec"]["ports"]]
        and wanted["metadata"]["labels"].items() <= (raw["metadata"].get("labels") or {}).items(),
    )


def _port(port: Mapping[str, Any]) -> tuple[Any, ...]:
    return (port.get("name"), port["port"], port.get("targetPort"))
