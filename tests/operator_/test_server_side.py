"""What the operator writes is what a real API server takes, under strict validation and restricted Pod Security."""

from __future__ import annotations

import json
import secrets

import pytest

from dormouse_operator.manifests import (
    WorkerDefaults,
    budget_manifest,
    claim_manifest,
    parse_policy,
    pod_manifest,
    policy_manifest,
    pre_pull_manifest,
    service_manifest,
)
from dormouse_operator.parse import parse_arrows, parse_deployment
from tools.kubectl import CommandFailed

pytestmark = pytest.mark.cluster

DEFAULTS = WorkerDefaults("IfNotPresent", "aa", "bb")
HUB = {"uri": "hf://org/tiny", "revision": "refs/pr/1", "tokenSecretRef": {"name": "hub"}, "size": "16Gi"}
RICH = {
    "metadata": {"labels": {"tier": "gold"}, "annotations": {"note": "x"}},
    "spec": {
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "topologySpreadConstraints": [
            {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
        ],
        "imagePullSecrets": [{"name": "pull"}],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "9Gi"}}, {"name": "more", "emptyDir": {}}],
        "enableServiceLinks": None,
        "containers": [
            {
                "name": "worker",
                "env": [{"name": "OMP_NUM_THREADS", "value": "4"}],
                "volumeMounts": [{"name": "more", "mountPath": "/more"}],
                "startupProbe": {"failureThreshold": 900},
            }
        ],
    },
}


@pytest.fixture(scope="module")
def namespace(cluster):
    name = f"written-{secrets.token_hex(3)}"
    cluster.create_namespace(name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def deployment(namespace, **spec):
    metadata = {"namespace": namespace, "name": "tiny", "uid": "u1"}
    return parse_deployment({"metadata": metadata, "spec": {"model": {"uri": "pvc://models/tiny"}, **spec}})


def create(cluster, manifest):
    """Have the server check everything and store nothing."""
    cluster.kubectl("create", "-f", "-", "--dry-run=server", "--validate=strict", stdin=json.dumps(manifest))


def pod(namespace, **spec):
    return pod_manifest(deployment(namespace, **spec), image="worker:1", index=0, defaults=DEFAULTS)


SPECS = {
    "a claim on cpu": {"engine": {"device": "cpu"}},
    "a GPU, with memory derived": {"model": {"uri": "file:///model", "size": "1.5Gi"}},
    "a GPU of another vendor beside other resources": {
        "gpu": {"resourceName": "amd.com/gpu"},
        "resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "1"}},
    },
    "a hub": {"model": HUB},
    "an image": {"model": {"uri": "oci://registry.example/tiny:1", "path": "models", "pullPolicy": "IfNotPresent"}},
    "a hub with a claim of ours": {"model": HUB, "cache": {"size": "40Gi"}},
    "a template": {"template": RICH},
    "a template over a hub": {
        "model": HUB,
        "template": {
            "spec": {"initContainers": [{"name": "download", "env": [{"name": "HF_ENDPOINT", "value": "https://x"}]}]}
        },
    },
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_server_takes_every_pod(cluster, namespace, spec):
    create(cluster, pod(namespace, **spec))


def test_the_server_takes_the_other_children(cluster, namespace):
    wanted = deployment(namespace, model=HUB, cache={"size": "40Gi", "storageClassName": "fast"})
    for manifest in (service_manifest(wanted), budget_manifest(wanted, 2), claim_manifest(wanted)):
        create(cluster, manifest)


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"uri": "oci://registry.example/tiny:1", "prePull": {"nodeSelector": {"a": "b"}}}},
        {"model": {**HUB, "prePull": {}}, "cache": {"claimName": "models"}, "template": RICH},
    ],
    ids=["image", "hub"],
)
def test_the_server_takes_what_fetches_ahead_and_its_pods(cluster, namespace, spec):
    made = pre_pull_manifest(deployment(namespace, **spec), image="worker:1", defaults=DEFAULTS)
    create(cluster, made)
    template = made["spec"]["template"]
    metadata = {**template["metadata"], "namespace": namespace, "name": "ahead"}
    create(cluster, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})


PEERS = [
    {"podSelector": {"matchLabels": {"app": "a"}}, "namespaceSelector": {"matchLabels": {}}},
    {"podSelector": {"matchLabels": {}, "matchExpressions": [{"key": "a", "operator": "Exists", "values": []}]}},
    {"podSelector": None, "ipBlock": {"cidr": "10.0.0.0/8", "except": []}},
    {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
]
PORTS = [{"port": 443}, {"port": "grpc"}, {}, {"protocol": "UDP", "port": 1000, "endPort": 2000}]
ODD_ARROWS = {
    "workers": {"ingress": [{"from": PEERS, "ports": PORTS}, {}], "egress": [{"to": [], "ports": []}, {"to": PEERS}]},
    "ranks": {"ports": PORTS, "egress": []},
}
NO_ARROWS = {"workers": {"ingress": [], "egress": []}, "ranks": {"ports": [], "egress": []}}


@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.parametrize("given", [ODD_ARROWS, NO_ARROWS], ids=["odd", "none"])
def test_a_policy_as_the_server_stores_it_is_the_one_that_was_written(cluster, namespace, given, pipeline):
    arrows = parse_arrows(json.dumps(given))
    wanted = deployment(namespace, parallelism={"pipeline": pipeline})
    manifest = json.dumps(policy_manifest(wanted, arrows))
    flags = ("--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts", "-o", "json")
    stored = json.loads(cluster.kubectl("apply", *flags, "-f", "-", stdin=manifest))
    assert parse_policy(stored, wanted, arrows).is_current


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"nodeSelectr": {"a": "b"}}, "nodeSelectr"),
        ({"containers": [{"name": "worker", "$patch": "delete"}]}, "$patch"),
        ({"hostNetwork": True}, "hostNetwork"),
        ({"containers": [{"name": "worker", "securityContext": {"privileged": True}}]}, "privileged"),
    ],
)
def test_what_a_template_adds_is_checked_by_the_server_which_names_the_field(cluster, namespace, template, words):
    with pytest.raises(CommandFailed) as refusal:
        create(cluster, pod(namespace, template={"spec": template}))
    assert words in str(refusal.value)
