"""The pod that reserves a slot's devices, and a member's pod beside it."""

from __future__ import annotations

import pytest

from dormouse_operator.manifests import WorkerDefaults, on_slot, pod_manifest, reservation_manifest
from dormouse_operator.parse import parse_deployment, parse_pod, parse_pool

PLACE = [{"name": "shared-1", "node": "n1", "devices": ["GPU-1"]}]
HERE = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pool(labels=None, **reservation):
    device = {"reservation": {"resourceName": "nvidia.com/gpu", **reservation}}
    metadata = {"namespace": "team", "name": "shared", "uid": "u-pool", "labels": labels}
    spec = {"slots": 2, "gpusPerSlot": 2, "device": device}
    return parse_pool({"metadata": metadata, "spec": spec, "status": {"slots": PLACE}})


def member_pod(of, template=None):
    body = {"model": {"uri": "file:///m"}, "gpu": {"pool": {"name": "shared"}}, "template": {"spec": template or {}}}
    raw = {"metadata": {"namespace": "team", "name": "tiny", "uid": "u1"}, "spec": body}
    made = pod_manifest(parse_deployment(raw), image="i", index=0, defaults=WorkerDefaults("Always", "a", "b"))
    return on_slot(made, of, "shared-1")


def test_a_reservation_tells_its_devices_first_and_then_keeps_them_and_goes_with_the_pool():
    defaults = WorkerDefaults("Always", "a", "b", image_pull_secrets=("hub",))
    made = reservation_manifest(pool(), "shared-1", image="worker:1", defaults=defaults)
    (teller,), (keeper,) = made["spec"]["initContainers"], made["spec"]["containers"]
    assert teller["command"][-2:] == ["tell", "NVIDIA_VISIBLE_DEVICES"]
    assert keeper["command"][-1] == "hold"
    assert teller["resources"] == keeper["resources"]
    assert keeper["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert made["metadata"]["name"] == "shared-1-reservation"
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("GpuPool", "u-pool", True)
    assert made["spec"]["imagePullSecrets"] == [{"name": "hub"}]


def test_a_members_pod_goes_to_the_node_of_its_slot_sees_its_devices_and_asks_for_none():
    made = member_pod(pool(runtimeClassName="nvidia"))
    worker = made["spec"]["containers"][0]
    seen = {item["name"]: item.get("value") for item in worker["env"]}
    assert seen["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    assert worker["resources"] == {}
    assert made["spec"]["runtimeClassName"] == "nvidia"
    assert made["spec"]["affinity"] == {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [HERE]}}}
    parsed = parse_pod({**made, "metadata": {**made["metadata"], "uid": "u"}})
    assert (parsed.pool, parsed.slot, parsed.reserved_devices) == ("shared", "shared-1", ("GPU-1",))


@pytest.mark.parametrize(
    ("terms", "expected"), [([], [HERE]), ([{"matchExpressions": [1]}], [{"matchExpressions": [1], **HERE}])]
)
def test_what_a_template_says_of_nodes_holds_beside_that_and_of_devices_does_not(terms, expected):
    worker = {"name": "worker", "env": [{"name": "CUDA", "value": "all"}]}
    affinity = {"podAffinity": {}, "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    made = member_pod(pool(visibleDevicesVariable="CUDA"), {"affinity": affinity, "containers": [worker]})
    assert made["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == expected
    assert made["spec"]["affinity"]["podAffinity"] == {}
    values = [item["value"] for item in made["spec"]["containers"][0]["env"] if item["name"] == "CUDA"]
    assert values == ["GPU-1"]
    assert "runtimeClassName" not in made["spec"]


def test_a_reservation_waits_in_the_queue_of_its_pool_and_its_other_labels_are_its_own():
    queued = pool({"kueue.x-k8s.io/queue-name": "gpus", "app.kubernetes.io/name": "theirs", "colour": "red"})
    defaults = WorkerDefaults("Always", "a", "b")
    labels = reservation_manifest(queued, "shared-1", image="worker:1", defaults=defaults)["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "gpus"
    assert labels["app.kubernetes.io/name"] == "dormouse"
    assert "colour" not in labels
