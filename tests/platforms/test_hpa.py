"""Kubernetes' own autoscaler writes replicas by what prometheus-adapter reads of a Prometheus that scrapes gateways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.kit import Deployments, wait_until
from tests.install.conftest import Installed, a_release
from tests.platforms.demand import PER_REPLICA, brings_and_takes_a_replica
from tests.platforms.monitoring import monitored
from tools.bootstrap import ROOT
from tools.kubectl import Cluster, CommandFailed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLE = ROOT / "examples" / "autoscale" / "hpa.yaml"
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def scaled(cluster: Cluster, tiny_model: Path) -> Iterator[Installed]:
    """A release whose gateways Prometheus scrapes, which the adapter asks."""
    with a_release(cluster, tiny_model) as mine, monitored(cluster, mine.release.namespace):
        yield mine


def autoscaler(name: str, **spec: Any) -> Manifest:
    """Return our example for a deployment, with other bounds, that does not wait before it scales back."""
    manifest: Manifest = yaml.safe_load(EXAMPLE.read_text())
    manifest["metadata"]["name"] = manifest["spec"]["scaleTargetRef"]["name"] = name
    manifest["spec"] |= {"maxReplicas": 2, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}, **spec}
    external = manifest["spec"]["metrics"][0]["external"]
    external["metric"]["selector"]["matchLabels"]["deployment"] = name
    external["target"]["averageValue"] = str(PER_REPLICA)
    return manifest


def test_requests_bring_a_second_replica_and_their_end_takes_it_away(scaled: Installed) -> None:
    def scale() -> None:
        scaled.cluster.apply(autoscaler("heron"), scaled.namespace)
        scaled.cluster.wait("hpa/heron", "condition=ScalingActive", scaled.namespace)

    brings_and_takes_a_replica(scaled, "heron", scale)


def test_another_autoscaler_beside_the_operators_is_told_of(scaled: Installed) -> None:
    """The operator takes back what the autoscaler, whose least is more than the operator's most, brings."""
    deployments = Deployments(scaled.cluster, scaled.namespace)
    deployments.apply("crane", engine={"kvCacheMemory": "64Mi"}, scaling={"maxReplicas": 1})
    deployments.wait("crane", "condition=Ready", timeout_s=180)
    scaled.cluster.apply(autoscaler("crane", minReplicas=2), scaled.namespace)
    told = 'jsonpath={.status.conditions[?(@.type=="Degraded")].reason}=ReplicasContested'
    deployments.wait("crane", told, timeout_s=240)
    scaled.cluster.kubectl("delete", "hpa", "crane", "-n", scaled.namespace)


def test_an_autoscaler_reads_of_its_own_namespace_only(scaled: Installed) -> None:
    """A namespace that a selector names is not the one that is asked for: the adapter writes its own over it."""
    Deployments(scaled.cluster, scaled.namespace).apply("egret", engine={"kvCacheMemory": "64Mi"})

    def values(namespace: str, selector: str) -> list[str]:
        path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/dormouse_unfinished_requests"
        try:
            said = scaled.cluster.kubectl("get", "--raw", f"{path}?labelSelector={selector}")
        except CommandFailed:  # the adapter has not heard of the metric yet
            return []
        return [item["value"] for item in json.loads(said)["items"]]

    wait_until(lambda: values(scaled.namespace, "deployment%3Degret") == ["0"])
    assert values("default", f"deployment%3Degret%2Cnamespace%3D{scaled.namespace}") == []
    assert values("default", "deployment%3Degret") == []
