"""KEDA itself, and Kubernetes' own autoscaler behind it, write replicas by what the gateway tells them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kit import Deployments, wait_until
from tests.install.conftest import Installed, a_release
from tests.platforms.demand import brings_and_takes_a_replica
from tests.platforms.keda import running_keda, scaled_object
from tools.kubectl import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def keda(cluster: Cluster) -> Iterator[None]:
    """KEDA; removed when the module ends."""
    with running_keda(cluster):
        yield


@pytest.fixture(scope="module")
def scaled(cluster: Cluster, keda: None, tiny_model: Path) -> Iterator[Installed]:  # noqa: ARG001  # KEDA is there
    """A release whose gateway KEDA may ask."""
    with a_release(cluster, tiny_model, {"gateway.scaler.enabled": "true"}) as mine:
        yield mine


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
