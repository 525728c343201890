"""KEDA itself, and Kubernetes' own autoscaler behind it, write replicas by what the gateway tells them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localkube.extras import KEDA
from tests.e2e.kit import Deployments, wait_until
from tests.install.conftest import Installed, a_release
from tests.platforms.demand import PER_REPLICA, brings_and_takes_a_replica
from tests.platforms.guests import ensure_guest
from tools.kubectl import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

_IMAGES = {"keda": "ghcr.io/kedacore/keda", "keda-adapter": "ghcr.io/kedacore/keda-metrics-apiserver"}
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def keda(cluster: Cluster) -> Iterator[None]:
    """KEDA, by the manifests of its own repository; removed when the module ends."""
    kept, images = ensure_guest(KEDA)
    manifests = cluster.kubectl("kustomize", str(kept / "minimal"))
    for name, theirs in _IMAGES.items():
        manifests, count = re.subn(rf"(image: ){theirs}:\S+", rf"\g<1>{images[name]}", manifests)
        assert count == 1
    manifests = manifests.replace("imagePullPolicy: Always", "imagePullPolicy: Never")
    try:
        cluster.kubectl("apply", "--server-side", "-f", "-", stdin=manifests)
        for deployment in ("keda-operator", "keda-metrics-apiserver"):
            cluster.wait(f"deployment/{deployment}", "condition=Available", "keda")
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=manifests)


@pytest.fixture(scope="module")
def scaled(cluster: Cluster, keda: None, tiny_model: Path) -> Iterator[Installed]:  # noqa: ARG001  # KEDA is there
    """A release whose gateway KEDA may ask."""
    with a_release(cluster, tiny_model, {"gateway.scaler.enabled": "true"}) as mine:
        yield mine


def scaled_object(installed: Installed, name: str) -> Manifest:
    """Return what has KEDA scale a deployment, and not wait before it scales it back."""
    release = installed.release
    trigger = {
        "scalerAddress": f"{release.gateway.removeprefix('service/')}.{release.namespace}.svc:9003",
        "deployment": name,
        "targetOutstandingPerReplica": str(PER_REPLICA),
    }
    at_once = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "inference.dormouse.dev/v1alpha1",
                "kind": "InferenceDeployment",
                "name": name,
            },
            "minReplicaCount": 1,
            "maxReplicaCount": 2,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": at_once}},
            "triggers": [{"type": "external-push", "metadata": trigger}],
        },
    }


def test_requests_bring_a_second_replica_and_their_end_takes_it_away(scaled: Installed) -> None:
    def scale() -> None:
        scaled.cluster.apply(scaled_object(scaled, "tern"), scaled.namespace)
        scaled.cluster.wait("scaledobject/tern", "condition=Ready", scaled.namespace)

    brings_and_takes_a_replica(scaled, "tern", scale)


def test_two_that_would_write_replicas_are_told_apart(scaled: Installed) -> None:
    cluster, deployments = scaled.cluster, Deployments(scaled.cluster, scaled.namespace)
    deployments.apply("wren", engine={"kvCacheMemory": "64Mi"}, scaling={"maxReplicas": 2})
    cluster.apply(scaled_object(scaled, "wren"), scaled.namespace)
    words = "remove spec.scaling or the ScaledObject"  # KEDA's Event says only that it got no metric
    wait_until(lambda: words in cluster.kubectl("logs", "-n", "keda", "deployment/keda-operator"))
    ready = cluster.get("scaledobject", "wren", scaled.namespace)["status"]["conditions"]
    assert [one["status"] for one in ready if one["type"] == "Ready"] == ["False"]
