"""A release without mutual TLS: it serves, and stays as it is until somebody says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.kit import Deployments, Model
from tests.install.conftest import MODEL, RESOURCES, a_release, gateway
from tools.kubectl import Cluster
from tools.release import install

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

GREEDY = [5, 6, 7]


def secrets(cluster: Cluster, namespace: str) -> list[str]:
    """Return the names of the Secrets with certificates in a namespace."""
    names = [secret["metadata"]["name"] for secret in cluster.list("secrets", namespace)]
    return [name for name in names if "identit" in name]


def test_a_release_without_mutual_tls_goes_on_so_when_an_upgrade_says_nothing_of_it(cluster: Cluster, tiny_model: Path):
    with a_release(cluster, tiny_model, {"mtls.enabled": "false"}) as mine:
        deployments = Deployments(cluster, mine.namespace)
        deployments.apply(MODEL, resources=RESOURCES)
        deployments.wait(MODEL, "condition=Ready", timeout_s=240)
        workers, gateways = mine.pods("worker"), mine.pods("gateway")
        with gateway(mine) as stub:
            answer = Model(stub, MODEL).greedy(GREEDY, 4)
        assert not [
            name for name in (*mine.left(mine.release.namespace), *mine.left(mine.namespace)) if "identit" in name
        ]
        install(cluster, mine.release, {"gateway.podAnnotations.round": "second"})
        assert not mine.pods("gateway").keys() & gateways.keys()
        with gateway(mine) as stub:
            assert Model(stub, MODEL).greedy(GREEDY, 4) == answer
        assert mine.pods("worker") == workers
