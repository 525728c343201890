"""Pods that have their devices of ResourceClaims: what stands in the status, and what cannot share a claim."""

from __future__ import annotations

import pytest

from dormouse_kube.api import PODS, RESOURCE_CLAIMS
from dormouse_kube.errors import Forbidden
from dormouse_operator.decide.rejection import rejection_of
from dormouse_operator.model import DeviceClaim, Parallelism, Placement, Rollout, Scaling
from dormouse_operator.parse import SpecError, parse_deployment, parse_devices, parse_pod
from dormouse_operator.testing.nouns import a_deployment, a_situation

OWN = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
SHARED = Placement(claims=(DeviceClaim(name="gpu", claim="gpu-7"),))
IN_PLACE = Rollout(max_surge=0, max_unavailable=1)


def allocated(*devices):
    results = [dict(zip(("driver", "pool", "device"), device.split("/"), strict=True)) for device in devices]
    return {"status": {"allocation": {"devices": {"results": results}}}}


def give(rig, *devices):
    """Allocate devices for the one claim of every pod, as the scheduler does."""
    for pod in rig.kube.everything(PODS):
        name = pod["metadata"]["name"]
        pod["spec"]["resourceClaims"] = [OWN]
        told = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]}
        rig.kube.put(PODS, {**pod, "status": {**pod["status"], **told}})
        metadata = {"namespace": "team", "name": f"{name}-gpu"}
        rig.kube.put(RESOURCE_CLAIMS, {"metadata": metadata, **allocated(*devices)})


async def test_the_devices_of_a_claim_stand_at_its_pod_and_its_ranks_and_are_read_once(rig):
    await rig.serving()
    give(rig, "gpu.example.com/node-1/gpu-3", "gpu.example.com/node-1/gpu-4")
    await rig.settle()
    held = ["gpu.example.com/node-1/gpu-3", "gpu.example.com/node-1/gpu-4"]
    assert [pod["devices"] for pod in rig.status["pods"]] == [held]
    assert [rank["devices"] for rank in rig.status["kvCache"]["ranks"]] == [held]
    await rig.reconcile()
    assert [call.verb for call in rig.kube.calls if call.plural == RESOURCE_CLAIMS.plural] == ["get"]


async def test_an_operator_that_may_not_read_claims_yet_serves_and_tells_of_no_device(rig):
    await rig.serving()
    give(rig, "gpu.example.com/node-1/gpu-3")
    rig.kube.fail("get", RESOURCE_CLAIMS, Forbidden("cannot get resourceclaims"), times=1000)
    await rig.settle()
    assert rig.condition("Ready")[0] == "True"
    assert [pod.get("devices") for pod in rig.status["pods"]] == [None]


def test_a_pod_names_its_claims_once_they_were_made():
    spec = {"resourceClaims": [OWN, {"name": "link", "resourceClaimName": "fabric"}]}
    raw = {"metadata": {"name": "a", "uid": "u"}, "spec": spec}
    assert parse_pod(raw).claims == ("fabric",)
    told = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "a-gpu-x1"}]}
    assert parse_pod({**raw, "status": told}).claims == ("a-gpu-x1", "fabric")


def test_a_claim_without_an_allocation_holds_nothing():
    assert parse_devices({}) == parse_devices({"status": {"allocation": {}}}) == ()
    assert parse_devices(allocated("a/b/c")) == ("a/b/c",)


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({"replicas": 2, "rollout": IN_PLACE}, "2 replicas"),
        ({"scaling": Scaling(min_replicas=1, max_replicas=3), "rollout": IN_PLACE}, "3 replicas"),
        ({"parallelism": Parallelism(pipeline=2), "rollout": IN_PLACE}, "spec.parallelism.pipeline is 2"),
        ({}, "spec.rollout.maxSurge to 0"),
    ],
)
def test_what_would_put_two_pods_on_one_claim_is_refused_by_name(changes, number):
    rejection = rejection_of(a_situation(deployment=a_deployment(placement=SHARED, **changes)))
    assert rejection.reason == "InvalidSpec"
    assert rejection.message.startswith("spec.gpu.claims[gpu].resourceClaimName gpu-7 ")
    assert number in rejection.message
    assert "resourceClaimTemplateName" in rejection.message


@pytest.mark.parametrize("rollout", [IN_PLACE, Rollout(strategy="SleepSwap")])
def test_one_replica_may_have_a_claim_that_exists(rollout):
    assert rejection_of(a_situation(deployment=a_deployment(placement=SHARED, rollout=rollout))) is None


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ({"claims": [{"name": "gpu"}]}, r"spec.gpu.claims\[gpu\]: exactly one of"),
        ({"claims": [OWN], "resourceName": "a.b/c"}, "spec.gpu.resourceName and spec.gpu.claims are both set"),
    ],
)
def test_what_an_older_schema_lets_through_is_refused_by_the_operator(gpu, words):
    metadata = {"namespace": "team", "name": "a", "uid": "u"}
    with pytest.raises(SpecError, match=words):
        parse_deployment({"metadata": metadata, "spec": {"model": {"uri": "file:///m"}, "gpu": gpu}})
