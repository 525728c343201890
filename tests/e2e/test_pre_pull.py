"""A model of a hub that is on the node before a worker: in the node's own directory, by a real DaemonSet."""

from __future__ import annotations

import shutil

import pytest

from dormouse_api.names import COMPONENT_PRE_PULL, LABEL_COMPONENT, LABEL_DEPLOYMENT
from localkube.spec import NODE_IP
from tests.peft_kit import greedy_tokens
from tests.worker.hub_server import HubServer
from tools.bootstrap import cache_root

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PROMPT, MAX_TOKENS = [42, 7, 7, 300], 8
NAME = "models-of-nodes"
SIZE = {"storage": "1Gi"}
PLACE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}]}


@pytest.fixture
def claim(cluster, namespace):
    """A claim whose volume is a directory of each node, as docs/how-to/pre-pull.md makes it."""
    if not cluster.local:
        pytest.skip("the directory is made on the node, which is this machine")
    folder = cache_root() / "localkube" / NAME
    folder.mkdir(parents=True)
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        **common,
        "capacity": SIZE,
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": namespace, "name": NAME},
        "local": {"path": str(folder)},
        "nodeAffinity": {"required": PLACE},
    }
    wanted = {**common, "volumeName": NAME, "resources": {"requests": SIZE}}
    for kind, spec in (("PersistentVolume", volume), ("PersistentVolumeClaim", wanted)):
        cluster.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": NAME}, "spec": spec}, namespace)
    yield NAME
    cluster.kubectl("delete", "pvc", NAME, "-n", namespace, "--wait=false")
    cluster.kubectl("delete", "pv", NAME, "--wait=false")
    shutil.rmtree(folder)


@pytest.fixture
def hub(tiny_model):
    """A hub on the node, at the one port that the workers' NetworkPolicy opens."""
    with HubServer((NODE_IP, 443)) as server:
        server.state.files = {file.name: file.read_bytes() for file in tiny_model.iterdir() if file.is_file()}
        yield server


def test_a_node_has_the_model_before_a_worker_and_the_hub_is_asked_once(
    deployments, cluster, model_of, claim, hub, tiny_model, eventually
):
    known = {"name": "download", "env": [{"name": "HF_ENDPOINT", "value": hub.endpoint}]}
    name = deployments.apply(
        "ahead",
        model={"uri": "hf://org/tiny", "prePull": {}},
        cache={"claimName": claim},
        lifecycle={"desiredState": "Zero"},
        template={"spec": {"initContainers": [known]}},
    )
    num_nodes = len(cluster.kubectl("get", "nodes", "-o", "name").split())
    eventually(lambda: deployments.status(name).get("prePull") == {"nodes": num_nodes, "readyNodes": num_nodes})
    ahead = f"{LABEL_DEPLOYMENT}={name},{LABEL_COMPONENT}={COMPONENT_PRE_PULL}"
    assert len(cluster.list("pods", deployments.namespace, ahead)) == num_nodes
    hub.state.status = 503  # nothing more comes from there
    asked = len(hub.state.asked)
    deployments.wake(name)
    eventually(lambda: model_of.answers(name, PROMPT, 1))
    assert model_of(name).greedy(PROMPT, MAX_TOKENS) == greedy_tokens(tiny_model, None, PROMPT, MAX_TOKENS)
    assert len(hub.state.asked) == asked
    deployments.patch(name, {"model": {"prePull": None}})
    eventually(lambda: not cluster.list("daemonsets", deployments.namespace))
    eventually(lambda: not cluster.list("pods", deployments.namespace, ahead))
