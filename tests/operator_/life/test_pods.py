"""Which pods there are, and the Service: scale, another spec, loss, deletion."""

from dataclasses import replace

import pytest
import yaml

from dormouse_api.names import API_VERSION, LABEL_REVISION
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS, SERVICES
from dormouse_operator.decide.conditions.all import evaluate_all
from dormouse_operator.decide.findings import find
from dormouse_operator.decide.status import build_status
from dormouse_operator.testing.fake_worker import FakeWorker
from dormouse_operator.testing.nouns import a_pod, a_situation
from tests.operator_.kit import passes
from tools.bootstrap import ROOT


async def test_scaling_down_removes_the_highest_and_leaves_the_rest_alone(rig):
    await rig.serving(replicas=3)
    first = rig.worker(0)
    rig.apply(replicas=1)
    await rig.settle()
    assert len(rig.pods) == 1
    assert rig.worker(0) is first
    assert first.commands == ["initialize_cache"]
    assert rig.status["replicas"] == 1


async def test_the_status_names_the_pods_that_the_operator_made_and_no_other_that_looks_like_them(rig):
    await rig.serving(replicas=2)
    made = {name: rig.kube.peek(PODS, rig.key.namespace, name) for name in sorted(rig.pods)}
    like = next(iter(made.values()))
    looks = {**like["metadata"], "name": "looks-like-it", "uid": "its-own", "ownerReferences": []}
    rig.kube.put(PODS, {**like, "metadata": looks, "status": {**like["status"], "podIP": "10.9.9.9"}})
    await rig.reconcile()
    revision = rig.status["rollout"]["revision"]
    assert rig.status["pods"] == [
        {"name": name, "uid": pod["metadata"]["uid"], "revision": revision} for name, pod in made.items()
    ]


def test_there_are_never_more_pods_in_the_status_than_the_schema_allows_and_those_that_go_are_left_out_first():
    schema = yaml.safe_load((ROOT / "crds" / "inferencedeployments.yaml").read_text())
    status = schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    limit, uid = status["pods"]["maxItems"], a_situation().deployment.uid
    going = [a_pod(name=f"a{number}", uid=f"a{number}", owner_uid=uid, is_deleting=True) for number in range(10)]
    staying = [a_pod(name=f"b{number}", uid=f"b{number}", owner_uid=uid) for number in range(limit)]
    seen = replace(a_situation(), pods=(*going, *staying))
    found = find(seen)
    told = build_status(seen, found, evaluate_all(seen, found), url="")["pods"]
    assert {pod["name"] for pod in told} == {pod.name for pod in staying}


async def test_without_pods_the_status_says_so(rig):
    await rig.serving()
    rig.apply(replicas=0)
    await rig.settle()
    assert rig.status["pods"] == []


async def test_zero_replicas_means_off(rig):
    await rig.serving()
    rig.apply(replicas=0)
    await rig.settle()
    assert rig.pods == []
    assert rig.status["phase"] == "Off"
    assert rig.condition("Ready")[:2] == ("False", "NoReplicas")


async def test_another_spec_replaces_the_pods(rig):
    await rig.serving()
    [before] = rig.pods
    rig.apply(engine={"device": "cpu", "maxNumSeqs": 4})
    await rig.until_profiled()
    await rig.settle()
    [after] = rig.pods
    assert before != after
    assert rig.status["phase"] == "Active"
    assert rig.status["observedGeneration"] == 2


async def test_a_new_operator_with_another_image_restarts_no_worker_even_when_scaled(rig):
    await rig.serving()
    before = rig.pods
    rig.default_image = "worker:2"
    rig.restart_operator()
    await rig.settle()
    rig.apply(replicas=2)
    await rig.settle()
    assert rig.pods[:1] == before
    assert rig.status["image"] == "worker:1"
    rig.apply(engine={"device": "cpu", "maxNumSeqs": 4})
    await rig.settle()
    assert rig.status["image"] == "worker:2"


async def test_a_deleted_pod_comes_back_and_is_agreed_on_again(rig):
    await rig.serving()
    uid = rig.kube.everything(PODS)[0]["metadata"]["uid"]
    await rig.kube.delete(PODS, "team", rig.pods[0])
    await rig.settle()
    assert rig.status["phase"] == "Profiling"
    assert rig.condition("Ready")[0] == "False"
    rig.worker().finish_loading()
    await rig.settle()
    assert rig.kube.everything(PODS)[0]["metadata"]["uid"] != uid
    assert rig.status["phase"] == "Active"
    assert rig.worker().allocated == 2000


async def test_an_evicted_pod_is_replaced(rig):
    await rig.serving()
    uid = rig.kube.everything(PODS)[0]["metadata"]["uid"]
    rig.kube.edit(
        PODS, "team", rig.pods[0], lambda pod: pod["status"].update(phase="Failed", reason="Evicted", message="full")
    )
    await rig.until_profiled()
    await rig.settle()
    assert rig.kube.everything(PODS)[0]["metadata"]["uid"] != uid
    assert rig.status["phase"] == "Active"


async def test_a_pod_whose_predecessor_is_still_ending_has_to_wait_for_the_name(rig):
    await rig.serving()
    await rig.kube.delete(PODS, "team", rig.pods[0])
    rig.kube.calls.clear()
    await rig.reconcile()
    assert [call for call in rig.kube.mutations() if call.plural == "pods"] == []
    assert rig.condition("Scheduled") == (
        "False",
        "PodsMissing",
        f"0 of 1 pods exist; pod {rig.pods[0]} is still ending",
    )


async def test_a_changed_service_is_put_right(rig):
    await rig.serving()
    rig.kube.edit(SERVICES, "team", "tiny", lambda obj: obj["spec"].update(selector={"a": "b"}))
    await rig.settle()
    assert rig.kube.peek(SERVICES, "team", "tiny")["spec"]["selector"] != {"a": "b"}


async def test_deletion_leaves_nothing_and_needs_no_operator(rig):
    await rig.serving()
    obj = rig.kube.peek(INFERENCE_DEPLOYMENTS, *rig.key)
    assert "finalizers" not in obj["metadata"]
    assert "annotations" not in obj["metadata"]
    await rig.kube.delete(INFERENCE_DEPLOYMENTS, *rig.key)
    rig.kube.collect_garbage()
    assert rig.kube.everything(PODS) == []
    assert rig.kube.everything(SERVICES) == []
    assert await rig.reconcile() is None
    assert rig.reconciler.seen == {}


async def test_a_namesake_of_a_deleted_object_replaces_the_pods_that_are_left(rig):
    await rig.serving()
    old = rig.kube.everything(PODS)[0]["metadata"]["uid"]
    await rig.kube.delete(INFERENCE_DEPLOYMENTS, *rig.key)
    await rig.kube.delete(SERVICES, *rig.key)
    rig.apply()
    await rig.until_profiled()
    await rig.settle()
    assert rig.kube.everything(PODS)[0]["metadata"]["uid"] != old
    assert rig.status["phase"] == "Active"


async def test_a_deployment_that_is_being_deleted_is_left_alone(rig):
    await rig.serving()
    rig.kube.edit(INFERENCE_DEPLOYMENTS, *rig.key, lambda obj: obj["metadata"].update(finalizers=["someone/else"]))
    await rig.kube.delete(INFERENCE_DEPLOYMENTS, *rig.key)
    rig.apply(replicas=3)
    rig.kube.calls.clear()
    assert await rig.reconcile() is None
    assert rig.kube.mutations() == []


def impostor(rig, name: str, **metadata):
    """Put a pod that is labelled like a worker of the deployment and answers like one."""
    real = rig.kube.peek(PODS, "team", rig.pods[0])
    pod = {**real, "metadata": {"namespace": "team", "name": name, "labels": real["metadata"]["labels"], **metadata}}
    pod["status"] = {**real["status"], "podIP": "10.9.9.9"}
    rig.kube.put(PODS, pod)
    made = rig.kube.peek(PODS, "team", name)
    rig.workers.workers["10.9.9.9"] = FakeWorker(made["metadata"]["uid"], real["metadata"]["labels"][LABEL_REVISION])


STRANGE_OWNERS = {
    "nobody": [],
    "a ReplicaSet": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "u", "controller": True}],
    "a kind of that name of somebody else's": [
        {"apiVersion": "evil.example/v1", "kind": "InferenceDeployment", "name": "tiny", "uid": "u", "controller": True}
    ],
    "one that is not the controller": [
        {"apiVersion": API_VERSION, "kind": "InferenceDeployment", "name": "tiny", "uid": "u"}
    ],
}


@pytest.mark.parametrize("owners", STRANGE_OWNERS.values(), ids=STRANGE_OWNERS)
async def test_a_pod_that_only_has_our_labels_is_neither_asked_nor_deleted_and_is_told_of(rig, owners):
    await rig.serving()
    impostor(rig, "decoy", ownerReferences=owners)
    rig.restart_operator()
    rig.apply(replicas=2)
    await passes(rig, 6)
    await rig.settle()
    assert rig.workers.asked["10.9.9.9"] == 0
    assert rig.workers.workers["10.9.9.9"].commands == []
    assert "decoy" in rig.pods
    assert rig.status["readyReplicas"] == 2
    status, reason, message = rig.condition("Degraded")
    assert (status, reason) == ("True", "ForeignPod")
    assert "pod decoy" in message
    assert any(event.startswith("ForeignPod") for event in rig.events)
    await rig.kube.delete(PODS, "team", "decoy")
    await rig.settle()
    assert rig.condition("Degraded")[1] == "AsExpected"


async def test_a_pod_of_another_deployment_is_not_asked(rig):
    await rig.serving()
    owner = {"apiVersion": API_VERSION, "kind": "InferenceDeployment", "name": "other", "uid": "u2", "controller": True}
    impostor(rig, "decoy", ownerReferences=[owner])
    await rig.reconcile()
    assert rig.workers.asked["10.9.9.9"] == 0


async def test_a_name_that_a_foreign_pod_took_is_passed_over(rig):
    await rig.serving()
    taken = rig.pods[0].removesuffix("-0") + "-1"
    impostor(rig, taken)
    rig.apply(replicas=2)
    await passes(rig, 6)
    await rig.settle()
    assert f"{taken}-1" in rig.pods
    assert rig.status["readyReplicas"] == 2


async def test_a_change_of_roles_is_told_of_the_pods_that_are_there_and_restarts_none(rig):
    engine = {"device": "cpu", "kvStore": {"size": "1Gi"}}
    await rig.serving(replicas=3, engine=engine)
    workers = [rig.worker(index) for index in range(3)]
    told = []
    for count in (1, 2):
        rig.apply(replicas=3, engine=engine, roles={"prefill": {"replicas": count}})
        await rig.settle()
        told.append([pod["role"] for pod in rig.status["pods"]])
    assert told == [["prefill", "decode", "decode"], ["prefill", "prefill", "decode"]]
    assert [rig.worker(index) for index in range(3)] == workers
