"""KEDA itself on the cluster, by the manifests of its own repository, and what has it scale a deployment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from localkube.extras import KEDA
from tests.install.conftest import Installed
from tests.platforms.demand import PER_REPLICA
from tests.platforms.guests import ensure_guest
from tools.kubectl import Cluster

_IMAGES = {"keda": "ghcr.io/kedacore/keda", "keda-adapter": "ghcr.io/kedacore/keda-metrics-apiserver"}
Manifest = dict[str, Any]


@contextmanager
def running_keda(cluster: Cluster) -> Iterator[None]:
    """Have KEDA on the cluster while the context lasts."""
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
