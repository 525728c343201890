"""Least privilege, proved by the API server's audit log: every right to write that the operator has is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dormouse_operator.parse.values import parse_bytes
from tools.bootstrap import cache_root

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

WRITES = {"create", "update", "patch", "delete"}
Right = tuple[str, str]  # verb, resource with its subresource


def granted_rights(cluster, release) -> set[Right]:
    """Return the operator's rights to write in the watched and in its own namespace."""
    return {
        (verb, resource)
        for namespace in (*release.watch_namespaces, release.namespace)
        for role in cluster.list("roles", namespace)
        if "operator" in role["metadata"]["name"]
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb in WRITES
    }


def used_rights(logs: Path, release) -> set[Right]:
    """Return what the operator did, and was allowed to do, according to the audit log and what it was before."""
    user = f"system:serviceaccount:{release.namespace}:"
    texts = (log.read_text() for log in logs.glob("audit*.log"))
    events = (json.loads(line) for text in texts for line in text.splitlines() if user in line)
    return {
        (event["verb"], "/".join(filter(None, (event["objectRef"]["resource"], event["objectRef"].get("subresource")))))
        for event in events
        if "operator" in event["user"]["username"] and event["verb"] in WRITES
    }


def shrink_a_pool(cluster, namespace, eventually):
    """Let an unused pool of GPUs that nobody offers, have a claim for each slot, then lose one with its slot."""

    def claims():
        found = cluster.list("resourceclaims", namespace, "inference.dormouse.dev/pool=idle")
        return [claim["metadata"]["name"] for claim in found]

    def apply(slots):
        spec = {"slots": slots, "device": {"claim": {"deviceClassName": "nobody.example.com"}}}
        manifest = {"apiVersion": "inference.dormouse.dev/v1alpha1", "kind": "GpuPool", "metadata": {"name": "idle"}}
        cluster.apply({**manifest, "spec": spec}, namespace)

    apply(2)
    eventually(lambda: claims() == ["idle-0", "idle-1"])
    apply(1)
    eventually(lambda: claims() == ["idle-0"])
    cluster.kubectl("delete", "gpool", "idle", "-n", namespace)
    eventually(lambda: not claims())


def refuse_an_adapter(cluster, namespace, eventually):
    """Let an InferenceAdapter name a base that is not there, which its status says."""
    manifest = {
        "apiVersion": "inference.dormouse.dev/v1alpha1",
        "kind": "InferenceAdapter",
        "metadata": {"name": "lost"},
    }
    cluster.apply({**manifest, "spec": {"base": "nobody", "uri": "file:///nothing"}}, namespace)
    eventually(lambda: cluster.get("infa", "lost", namespace).get("status", {}).get("state") == "Refused")
    cluster.kubectl("delete", "infa", "lost", "-n", namespace)


def refuse_a_key(cluster, namespace, eventually):
    """Let an InferenceKey be over, which its status says."""
    manifest = {"apiVersion": "inference.dormouse.dev/v1alpha1", "kind": "InferenceKey", "metadata": {"name": "over"}}
    cluster.apply({**manifest, "spec": {"sha256": "0" * 64, "expires": "2020-01-01T00:00:00Z"}}, namespace)
    eventually(lambda: cluster.get("infk", "over", namespace).get("status", {}).get("state") == "Expired")
    cluster.kubectl("delete", "infk", "over", "-n", namespace)


def fetch_a_model_ahead(deployments, eventually):
    """Let nodes fetch a model that is nowhere, until they are no longer asked to."""

    def sets():
        return deployments.cluster.list("daemonsets", deployments.namespace)

    name = deployments.apply("ahead", model={"uri": "oci://nowhere.example/nothing:1", "prePull": {}}, replicas=0)
    eventually(sets)
    deployments.patch(name, {"model": {"prePull": None}})
    eventually(lambda: not sets())


def lower_the_request_of_a_sleeper(deployments, eventually):
    """Let a pod ask for less memory while it sleeps without weights, and for all of it once it serves."""

    def requests():
        found = [pod["spec"]["containers"][0]["resources"]["requests"]["memory"] for pod in deployments.pods(name)]
        return [parse_bytes("memory", memory) >> 30 for memory in found]

    order = {"desiredState": "Asleep", "sleepLevel": 2, "shrinkRequests": True}
    name = deployments.apply("frugal", resources={"requests": {"memory": "3Gi"}}, lifecycle=order)
    eventually(lambda: requests() == [2])
    deployments.patch(name, {"lifecycle": {"desiredState": "Active"}})
    deployments.wait(name, "condition=Ready")
    assert requests() == [3]
    deployments.patch(name, {"replicas": 0})


def test_the_operator_uses_every_right_to_write_that_it_has_and_no_other(deployments, cluster, release, eventually):
    if not cluster.local:
        pytest.skip("only the local cluster's audit log can be read")
    name = deployments.apply("righteous", replicas=2)  # two have a disruption budget, which goes with the second
    cached = deployments.apply("cached", model={"uri": "hf://nobody/nothing"}, cache={"size": "1Mi"})
    deployments.wait(name, "condition=Ready")
    deployments.patch(name, {"replicas": 2, "scaling": {"maxReplicas": 1}})
    eventually(lambda: cluster.get("infd", name, deployments.namespace)["spec"]["replicas"] == 1)
    before = deployments.status(name)["rollout"]["revision"]
    deployments.patch(name, {"rollout": {"strategy": "SleepSwap"}, "engine": {"maxNumSeqs": 4}})  # in the same pod
    eventually(lambda: deployments.status(name)["rollout"]["revision"] != before)
    deployments.wait(name, 'jsonpath={.status.conditions[?(@.type=="Progressing")].reason}=Complete')
    eventually(lambda: deployments.pods(cached))  # it never serves: its claim is what counts here
    fetch_a_model_ahead(deployments, eventually)
    lower_the_request_of_a_sleeper(deployments, eventually)
    shrink_a_pool(cluster, deployments.namespace, eventually)
    refuse_an_adapter(cluster, deployments.namespace, eventually)
    refuse_a_key(cluster, deployments.namespace, eventually)
    cluster.kubectl("scale", f"infd/{name}", "-n", deployments.namespace, "--replicas=0")
    eventually(lambda: not deployments.pods(name))
    granted = granted_rights(cluster, release)
    used = used_rights(cache_root() / "localkube" / "log", release)
    applied = {("create", resource) for verb, resource in used if verb == "patch"}  # a first apply creates
    assert used - granted == set()
    assert granted - used - applied == set()
