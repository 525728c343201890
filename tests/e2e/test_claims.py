"""GPUs by claim on a real scheduler and a real kubelet, handed out by localkube's stand-in driver.

Nothing is in a pod that gets such a GPU, so its worker says that there is none and never serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from localkube.gpus.objects import DRIVER
from localkube.spec import NODE_NAME
from tests.e2e.gpus import Driver
from tests.e2e.kit import Deployments, wait_until_none
from tools.kubectl import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one-gpu"},
    "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}},
}
BOTH = [f"{DRIVER}/{NODE_NAME}/gpu-0", f"{DRIVER}/{NODE_NAME}/gpu-1"]


@pytest.fixture
def driver(cluster: Cluster, namespace: str) -> Iterator[Driver]:
    """A driver, and a template of claims for one GPU each. Nothing of both is left afterwards."""
    assert cluster.local, "the driver talks to the kubelet of localkube"
    cluster.apply(TEMPLATE, namespace)
    driver = Driver(number=2)
    yield driver
    cluster.kubectl("delete", "resourceclaimtemplate", "one-gpu", "-n", namespace)
    driver.stop()
    assert DRIVER not in cluster.kubectl("get", "resourceslices,deviceclasses", "-o", "name")


@pytest.fixture
def claiming(driver: Driver, deployments: Deployments) -> Iterator[Deployments]:
    """Deployments whose pods end before the driver does."""
    assert driver.process.poll() is None
    yield deployments
    for name in list(deployments.made):
        deployments.delete(name)
    wait_until_none(lambda: claims(deployments))


def apply(deployments: Deployments, name: str, replicas: int) -> None:
    """Apply a deployment whose pods have one GPU each."""
    gpu = {"claims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}
    deployments.apply(name, replicas=replicas, engine={"device": "cuda"}, gpu=gpu)


def devices(deployments: Deployments, name: str) -> list[str]:
    """Return the devices that the status tells of the pods, sorted."""
    return sorted(device for pod in deployments.status(name).get("pods", ()) for device in pod.get("devices", ()))


def phases(deployments: Deployments, name: str) -> list[str]:
    """Return how far the kubelet is with each pod: it starts none before the driver has prepared its claim."""
    return [pod["status"]["phase"] for pod in deployments.pods(name)]


def claims(deployments: Deployments) -> list[str]:
    """Return the names of the claims of the namespace."""
    return [claim["metadata"]["name"] for claim in deployments.cluster.list("resourceclaims", deployments.namespace)]


def test_each_pod_has_a_gpu_of_its_own_the_next_waits_and_what_is_not_used_is_given_back(
    claiming: Deployments, eventually: Callable[..., Any]
) -> None:
    apply(claiming, "by-claim", replicas=2)
    eventually(lambda: devices(claiming, "by-claim") == BOTH)
    eventually(lambda: phases(claiming, "by-claim") == ["Running", "Running"])
    claiming.patch("by-claim", {"replicas": 3})
    eventually(lambda: claiming.condition("by-claim", "Scheduled").get("reason") == "Unschedulable")
    assert "claims" in claiming.condition("by-claim", "Scheduled")["message"]
    assert ["nodeName" in pod["spec"] for pod in claiming.pods("by-claim")] == [True, True, False]
    assert devices(claiming, "by-claim") == BOTH
    claiming.patch("by-claim", {"replicas": 1})
    eventually(lambda: len(claims(claiming)) == 1)
    claiming.patch("by-claim", {"replicas": 0})
    wait_until_none(lambda: claims(claiming))
    wait_until_none(lambda: claiming.pods("by-claim"))


def test_pods_that_end_while_the_driver_is_dead_are_gone_once_it_is_back(
    claiming: Deployments, driver: Driver, eventually: Callable[..., Any]
) -> None:
    apply(claiming, "orphaned", replicas=2)
    eventually(lambda: phases(claiming, "orphaned") == ["Running", "Running"])
    with driver.killed():
        claiming.patch("orphaned", {"replicas": 0})
        eventually(lambda: all("deletionTimestamp" in pod["metadata"] for pod in claiming.pods("orphaned")))
    wait_until_none(lambda: claiming.pods("orphaned"))
    wait_until_none(lambda: claims(claiming))
