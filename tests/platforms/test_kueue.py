"""Kueue itself admits models: one after the other, groups whole or not at all, and who matters more takes a place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from localkube.extras import KUEUE
from tests.e2e.kit import Deployments, Model, stays, wait_until, wait_until_none
from tests.install.conftest import Installed, a_release, gateway
from tests.platforms.guests import ensure_guest
from tools.kubectl import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

API = "kueue.x-k8s.io/v1beta2"
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
PROMPT = [20, 21, 22, 23]
Manifest = dict[str, Any]
_NAMESPACE = "kueue-system"
_CONFIG = {  # JSON is YAML
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "health": {"healthProbeBindAddress": ":8081"},
    "metrics": {"bindAddress": ":8443"},
    "webhook": {"port": 9443},
    "integrations": {"frameworks": ["pod"]},
}


@pytest.fixture(scope="module")
def kueue(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kueue, for pods alone; removed with its resources when the module ends."""
    chart, images = ensure_guest(KUEUE)
    repository, _, tag = images["manager"].partition(":")
    config = tmp_path_factory.mktemp("kueue") / "config.yaml"
    config.write_text(json.dumps(_CONFIG))
    values = {
        "controllerManager.manager.image.repository": repository,
        "controllerManager.manager.image.tag": tag,
        "controllerManager.manager.image.pullPolicy": "Never",
        "controllerManager.manager.resources.requests.cpu": "50m",
        "controllerManager.readinessProbe.initialDelaySeconds": "1",
    }
    said = [part for name, value in values.items() for part in ("--set-string", f"{name}={value}")]
    said += ["--set-file", f"managerConfig.controllerManagerConfigYaml={config}"]
    place = ["--namespace", _NAMESPACE]
    try:
        cluster.helm("upgrade", "--install", "kueue", str(chart), *place, "--create-namespace", *said, "--wait")
        yield
    finally:
        cluster.kubectl("delete", "clusterqueues,resourceflavors", "--all")  # while there is who takes finalizers away
        cluster.helm("uninstall", "kueue", *place, "--wait")
        cluster.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def queued(cluster: Cluster, kueue: None, tiny_model: Path) -> Iterator[Installed]:  # noqa: ARG001  # Kueue is there
    """A release whose models start when Kueue lets them."""
    with a_release(cluster, tiny_model) as mine:
        yield mine


def objects(num_pods: int) -> list[Manifest]:
    """Return a queue `models` that admits so many pods, and a class of those who matter more."""
    quota = {"cpu": "8", "memory": "32Gi", "pods": str(num_pods)}
    resources = [{"name": name, "nominalQuota": most} for name, most in quota.items()]
    flavors = [{"name": "any", "resources": resources}]
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": list(quota), "flavors": flavors}],
    }
    return [
        {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "any"}},
        {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": "models"}, "spec": spec},
        {"apiVersion": API, "kind": "LocalQueue", "metadata": {"name": "models"}, "spec": {"clusterQueue": "models"}},
        {"apiVersion": API, "kind": "WorkloadPriorityClass", "metadata": {"name": "customers"}, "value": 1000},
    ]


class Queue:
    """The queue of a namespace, and models that wait in it."""

    def __init__(self, installed: Installed) -> None:
        self.installed = installed
        self.deployments = Deployments(installed.cluster, installed.namespace)

    def admit(self, num_pods: int) -> None:
        """Have the queue admit so many pods at a time."""
        for manifest in objects(num_pods):
            self.installed.cluster.apply(manifest, self.installed.namespace)

    def apply(self, name: str, *, priority: str = "", **spec: Any) -> str:
        """Apply a deployment that waits in the queue."""
        spec = {"engine": {"kvCacheMemory": "64Mi"}, "lifecycle": {"desiredState": "Active"}, **spec}
        manifest = self.deployments.manifest(name, **spec)
        manifest["metadata"]["labels"] = {QUEUE: "models", **({PRIORITY: priority} if priority else {})}
        self.installed.cluster.apply(manifest, self.installed.namespace)
        self.deployments.made.append(name)
        return name

    def waits(self, name: str) -> None:
        """Wait until a model waits in the queue, and see that none of its pods has a node."""
        self.deployments.wait(name, 'jsonpath={.status.conditions[?(@.type=="Scheduled")].reason}=WaitingForQueue')
        assert "queue models" in self.deployments.condition(name, "Scheduled")["message"]
        assert not [pod for pod in self.deployments.pods(name) if "nodeName" in pod["spec"]]

    def workloads(self) -> list[str]:
        """Return the names of what waits or runs, as Kueue sees it."""
        found = self.installed.cluster.list("workloads.kueue.x-k8s.io", self.installed.namespace)
        return [workload["metadata"]["name"] for workload in found]

    def pods(self) -> list[str]:
        """Return all pods of models."""
        found = self.installed.cluster.list("pods", self.installed.namespace, "inference.dormouse.dev/deployment")
        return [pod["metadata"]["name"] for pod in found]


@pytest.fixture
def queue(queued: Installed) -> Iterator[Queue]:
    """A queue that admits one pod; models and workloads are gone when the test ends."""
    queue = Queue(queued)
    queue.admit(1)
    yield queue
    for name in list(queue.deployments.made):
        queue.deployments.delete(name)
    wait_until_none(queue.pods)
    wait_until_none(queue.workloads)


def test_a_model_waits_for_its_turn_and_one_at_zero_gives_its_place_back(queue: Queue) -> None:
    first, second = queue.apply("owl"), queue.apply("bat")
    running, waiting = wait_until(lambda: turn(queue, first, second), timeout_s=180)
    queue.deployments.wait(running, "condition=Ready", timeout_s=180)
    queue.waits(waiting)
    queue.deployments.patch(running, {"lifecycle": {"desiredState": "Zero"}})
    queue.deployments.wait(waiting, "condition=Ready", timeout_s=180)
    with gateway(queue.installed) as stub:
        assert len(Model(stub, waiting).greedy(PROMPT, 4)) == 4


def turn(queue: Queue, first: str, second: str) -> tuple[str, str] | None:
    """Return who was admitted and who waits, once one of them has a node."""
    placed = {name for name in (first, second) for pod in queue.deployments.pods(name) if "nodeName" in pod["spec"]}
    assert len(placed) <= 1
    return next(((name, second if name == first else first) for name in placed), None)


def test_a_request_brings_a_model_back_through_the_queue(queue: Queue) -> None:
    name = queue.apply("hen")
    queue.deployments.wait(name, "condition=Ready", timeout_s=180)
    with gateway(queue.installed) as stub:
        before = Model(stub, name).greedy(PROMPT, 6)
        queue.deployments.patch(name, {"lifecycle": {"desiredState": "Zero"}})
        queue.deployments.wait(name, "jsonpath={.status.phase}=Zero")
        wait_until_none(queue.workloads)
        queue.deployments.patch(name, {"lifecycle": {"desiredState": "Auto"}})
        assert Model(stub, name).greedy(PROMPT, 6, timeout_s=180) == before, "held, admitted, answered"


def test_a_group_starts_whole_or_not_at_all_and_leaves_nothing_behind(queue: Queue) -> None:
    name = queue.apply("ant", parallelism={"pipeline": 2, "schedulingDeadlineSeconds": 10})
    queue.waits(name)
    pods = queue.pods()
    assert len(pods) == 2
    stays(queue.pods, pods, for_s=12)  # longer than its deadline: a group in a queue holds nothing to give back
    assert queue.workloads() == [min(pods, key=len)]
    queue.admit(2)
    queue.deployments.wait(name, "condition=Ready", timeout_s=240)
    with gateway(queue.installed) as stub:
        assert len(Model(stub, name).greedy(PROMPT, 4)) == 4
    queue.deployments.delete(name)
    wait_until_none(queue.pods)
    wait_until_none(queue.workloads)


def test_who_matters_more_takes_the_place_of_a_model_whose_stream_ends_first(queue: Queue) -> None:
    name = queue.apply("cat")
    queue.deployments.wait(name, "condition=Ready", timeout_s=180)
    before = uids(queue, name)
    with gateway(queue.installed) as stub, ThreadPoolExecutor(1) as pool:
        stream = stub.Generate(long_request(name), timeout=240)
        tokens = list(next(stream).token_ids)
        rest = pool.submit(lambda: [token for answer in stream for token in answer.token_ids])
        urgent = queue.apply("dog", priority="customers")
        queue.deployments.wait(urgent, "condition=Ready", timeout_s=240)
        assert len(tokens) + len(rest.result()) == 400, "the pod drained before it went"
        queue.waits(name)
        assert not before & uids(queue, name)
        queue.deployments.delete(urgent)
        queue.deployments.wait(name, "condition=Ready", timeout_s=240)
        assert len(Model(stub, name).greedy(PROMPT, 4)) == 4


def uids(queue: Queue, name: str) -> set[str]:
    """Return by what a model's pods are told from others of their names."""
    return {pod["metadata"]["uid"] for pod in queue.deployments.pods(name)}


def long_request(name: str) -> pb.GenerateRequest:
    """Return a request for 400 tokens."""
    sampling = pb.SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    return pb.GenerateRequest(model=name, token_ids=pb.TokenIds(ids=PROMPT), sampling_params=sampling)


def test_without_kueue_the_condition_repeats_what_the_api_server_says(queue: Queue) -> None:
    cluster, place = queue.installed.cluster, ["-n", "kueue-system"]
    cluster.kubectl("scale", "deployment", "--all", "--replicas=0", *place)
    wait_until_none(lambda: cluster.list("pods", "kueue-system"))
    name = queue.apply("elk")
    queue.deployments.wait(name, 'jsonpath={.status.conditions[?(@.type=="Scheduled")].reason}=PodRejected')
    assert "kueue" in json.dumps(queue.deployments.condition(name, "Scheduled"))
    cluster.kubectl("scale", "deployment", "--all", "--replicas=1", *place)
    queue.deployments.wait(name, "condition=Ready", timeout_s=240)
