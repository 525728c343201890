"""A slot is a claim of its pool's; a member's pod names it, and its worker touches the devices under a grant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_api.names import LABEL_POOL, LABEL_SLOT
from dormouse_operator.manifests import WorkerDefaults, member_complaint, on_slot, pod_manifest, slot_claim_manifest
from dormouse_operator.model import Parallelism, Placement, PoolMember, Scaling
from dormouse_operator.parse import parse_deployment, parse_pod, parse_pool
from dormouse_operator.testing.nouns import a_deployment

CLAIM = {"deviceClassName": "gpu.nvidia.com"}


def pool(**spec):
    metadata = {"namespace": "team", "name": "shared", "uid": "u-pool"}
    return parse_pool({"metadata": metadata, "spec": {"slots": 2, "device": {"claim": CLAIM}, **spec}})


def member(template=None, **fields):
    placement = Placement(pool=PoolMember(name="shared"), template={"spec": template} if template else {})
    return a_deployment(placement=placement, **fields)


def pod(template=None, **spec):
    body = {"model": {"uri": "file:///m"}, "gpu": {"pool": {"name": "shared"}}, **spec}
    body |= {"template": {"spec": template}} if template else {}
    raw = {"metadata": {"namespace": "team", "name": "tiny", "uid": "u1"}, "spec": body}
    defaults = WorkerDefaults("Always", "a", "b")
    return on_slot(pod_manifest(parse_deployment(raw), image="i", index=0, defaults=defaults), pool(), "shared-1")


def worker_of(manifest):
    return next(each for each in manifest["spec"]["containers"] if each["name"] == "worker")


def test_a_slot_s_claim_asks_for_the_slot_s_gpus_and_goes_with_the_pool():
    selectors = [{"cel": {"expression": "true"}}, {"cel": {"expression": "1 < 2"}}]
    made = slot_claim_manifest(pool(gpusPerSlot=2, device={"claim": {**CLAIM, "selectors": selectors}}), "shared-1")
    assert made["kind"] == "ResourceClaim"
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == ("shared-1", "team")
    assert made["metadata"]["labels"].items() >= {LABEL_POOL: "shared", LABEL_SLOT: "shared-1"}.items()
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("GpuPool", "shared", "u-pool", True)
    exactly = {
        "deviceClassName": "gpu.nvidia.com",
        "allocationMode": "ExactCount",
        "count": 2,
        "selectors": selectors,
    }
    assert made["spec"] == {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def test_without_selectors_the_class_decides():
    (request,) = slot_claim_manifest(pool(), "shared-0")["spec"]["devices"]["requests"]
    assert "selectors" not in request["exactly"]


def test_a_member_s_pod_names_the_claim_of_its_slot_and_asks_for_no_extended_resource():
    made = pod()
    assert made["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimName": "shared-1"}]
    worker = worker_of(made)
    assert worker["resources"] == {"claims": [{"name": "gpu"}]}
    assert "--device-grants" in worker["args"]
    assert made["metadata"]["labels"].items() >= {LABEL_POOL: "shared", LABEL_SLOT: "shared-1"}.items()
    parsed = parse_pod({**made, "metadata": {**made["metadata"], "uid": "u"}})
    assert (parsed.pool, parsed.slot) == ("shared", "shared-1")


def test_what_a_member_s_template_asks_for_beside_the_slot_stays():
    link = {"name": "link", "resourceClaimName": "fabric"}
    wanted = {"limits": {"memory": "1Gi"}, "claims": [{"name": "link"}]}
    side = {"name": "side", "image": "x"}
    made = pod({"resourceClaims": [link], "containers": [{"name": "worker", "resources": wanted}, side]})
    assert made["spec"]["resourceClaims"] == [link, {"name": "gpu", "resourceClaimName": "shared-1"}]
    assert worker_of(made)["resources"] == {**wanted, "claims": [{"name": "link"}, {"name": "gpu"}]}
    assert [each for each in made["spec"]["containers"] if each["name"] == "side"] == [side]


@pytest.mark.parametrize(
    "template", [{"resourceClaims": None}, {"containers": [{"name": "worker", "resources": None}]}]
)
def test_a_template_that_takes_things_away_does_not_take_the_slot(template):
    made = pod(template)
    assert made["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimName": "shared-1"}]
    assert worker_of(made)["resources"]["claims"] == [{"name": "gpu"}]


def test_who_is_in_no_pool_is_started_without_grants():
    raw = {"metadata": {"namespace": "team", "name": "tiny", "uid": "u1"}, "spec": {"model": {"uri": "file:///m"}}}
    made = pod_manifest(parse_deployment(raw), image="i", index=0, defaults=WorkerDefaults("Always", "a", "b"))
    assert "--device-grants" not in worker_of(made)["args"]


@pytest.mark.parametrize(
    ("deployment", "wanted", "words"),
    [
        (member(), 2, ""),
        (
            member(parallelism=Parallelism(tensor=2)),
            1,
            "spec.parallelism.tensor is 2, and each slot of GpuPool shared has 1",
        ),
        (member(), 3, "there may be 3 replicas, and GpuPool shared has 2 slots"),
        (member(scaling=Scaling(max_replicas=5)), 1, "there may be 5 replicas, and GpuPool shared has 2 slots"),
        (member({"resourceClaims": [{"name": "gpu"}]}), 1, "spec.template.spec.resourceClaims[gpu] is the slot's"),
        (member({"resourceClaims": [{"name": "link"}]}), 1, ""),
    ],
)
def test_who_cannot_be_a_member_is_told_why_with_the_numbers(deployment, wanted, words):
    complaint = member_complaint(deployment, pool(), wanted)
    assert complaint.startswith(words)
    assert bool(complaint) == bool(words)


def test_a_member_has_as_many_ranks_as_its_slot_has_gpus():
    assert member_complaint(replace(member(), parallelism=Parallelism(tensor=4)), pool(gpusPerSlot=4), 2) == ""
