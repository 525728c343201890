"""Two nodes: one is drained, one is lost. Needs `localkube up --nodes 2` (`make e2e-nodes`)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dormouse_api.names import LABEL_DEPLOYMENT
from localkube import second, spec
from tests.e2e.kit import Deployments
from tests.e2e.test_rollouts import asked_all_the_time
from tools.kubectl import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(420)]

PROMPT = [20, 21, 22, 23]


def apart(name: str) -> dict[str, Any]:
    """Return what keeps a deployment's own workers on different nodes while that is possible."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {LABEL_DEPLOYMENT: name}}}
    return {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]
        }
    }


def is_node_ready(cluster: Cluster, name: str) -> bool:
    """Return whether the node's kubelet answers the control plane."""
    conditions = cluster.get("node", name, "").get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


@pytest.fixture
def second_node(cluster: Cluster, request: pytest.FixtureRequest, eventually: Callable[..., Any]) -> Iterator[str]:
    """The second node, open for the workers of one test; operator and gateway stay on the first."""
    cluster.kubectl("cordon", spec.SECOND_NAME)
    request.getfixturevalue("gateway")  # installs the run's release
    assert is_node_ready(cluster, spec.SECOND_NAME), "there is no second node: localkube up --nodes 2"
    cluster.kubectl("uncordon", spec.SECOND_NAME)
    yield spec.SECOND_NAME
    eventually(lambda: is_node_ready(cluster, spec.SECOND_NAME))
    cluster.kubectl("cordon", spec.SECOND_NAME)


@contextmanager
def silenced() -> Iterator[None]:
    """Cut the second node's cable: kubelet, workers and their connections are there, and nobody hears of them."""
    subprocess.run(["ip", "link", "set", second.VETH, "down"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", second.VETH, "up"], check=True)


def places(deployments: Deployments, name: str) -> list[str]:
    """Return the nodes of the pods that are to stay."""
    pods = [pod for pod in deployments.pods(name) if "deletionTimestamp" not in pod["metadata"]]
    return [pod["spec"].get("nodeName", "") for pod in pods]


def two_apart(deployments: Deployments, name: str) -> None:
    """Serve with one worker on each node."""
    template = {"spec": {"affinity": apart(name)}}
    deployments.apply(name, replicas=2, engine={"kvCacheMemory": "64Mi"}, template=template)
    deployments.wait(name, "condition=Ready", timeout_s=240)
    assert sorted(places(deployments, name)) == [spec.NODE_NAME, spec.SECOND_NAME]


def serves_on_the_first(deployments: Deployments, name: str) -> bool:
    """Return whether both workers serve from the first node."""
    status = deployments.status(name)
    return places(deployments, name) == [spec.NODE_NAME] * 2 and status.get("readyReplicas") == 2


def test_a_drained_node_s_workers_move_and_no_request_fails(
    cluster: Cluster, deployments: Deployments, model_of: Any, eventually: Callable[..., Any], second_node: str
) -> None:
    two_apart(deployments, "drained")
    expected = eventually(lambda: model_of.answers("drained", PROMPT, 12))
    with asked_all_the_time(model_of("drained")) as answers:
        cluster.kubectl("drain", second_node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
        eventually(lambda: serves_on_the_first(deployments, "drained"), timeout_s=180)
        seen = len(answers)
        eventually(lambda: len(answers) > seen)
    assert all(answer == expected for answer in answers)


@pytest.mark.usefixtures("second_node")
def test_a_lost_node_s_worker_is_replaced_and_no_request_fails(
    deployments: Deployments, model_of: Any, eventually: Callable[..., Any]
) -> None:
    """F31. The control plane notices after its own grace (40 to 50 s), then the pod may stay nodeLossSeconds more."""
    two_apart(deployments, "lost")
    expected = eventually(lambda: model_of.answers("lost", PROMPT, 12))
    before = {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in deployments.pods("lost")}
    with asked_all_the_time(model_of("lost")) as answers:
        with silenced():
            eventually(lambda: serves_on_the_first(deployments, "lost"), timeout_s=240)
        seen = len(answers)
        eventually(lambda: len(answers) > seen)
        eventually(lambda: len(deployments.pods("lost")) == 2, timeout_s=180)  # the old pod ends with its node back
    assert all(answer == expected for answer in answers)
    after = {pod["metadata"]["uid"] for pod in deployments.pods("lost")}
    assert [node for uid, node in before.items() if uid in after] == [spec.NODE_NAME], "the other one was left alone"
