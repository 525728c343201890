"""Nodes that fetch a model ahead: the DaemonSet, when it is made, changed and removed, and what the status counts."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import pytest

from dormouse_api.names import COMPONENT_PRE_PULL, LABEL_COMPONENT, LABEL_DEPLOYMENT
from dormouse_kube.api import DAEMON_SETS, PODS
from dormouse_kube.errors import Forbidden
from dormouse_operator.manifests import pod_digest_of, policy_manifest, pre_pull_manifest, revision_of
from dormouse_operator.model import Arrows
from dormouse_operator.parse import SpecError, parse_pods
from tests.operator_.manifests.test_manifests import DEFAULTS, deployment

IMAGE = {"uri": "oci://registry.example/tiny:1", "prePull": {}}
HUB = {"uri": "hf://org/tiny", "prePull": {}, "tokenSecretRef": {"name": "hub"}}
CACHE = {"claimName": "models"}
OURS = {LABEL_DEPLOYMENT: "tiny", LABEL_COMPONENT: COMPONENT_PRE_PULL}


def manifest(*, mutual_tls=False, **spec):
    wanted = replace(deployment(**spec), mutual_tls=mutual_tls)
    return pre_pull_manifest(wanted, image="worker:1", defaults=DEFAULTS)


def pod_of(**spec):
    return manifest(**spec)["spec"]["template"]["spec"]


# --- what is refused ---


@pytest.mark.parametrize(
    ("uri", "cache"),
    [
        ("pvc://models/tiny", {}),
        ("file:///opt/tiny", {}),
        ("hf://org/tiny", {}),
        ("hf://org/tiny", {"size": "1Gi"}),
        ("pvc://models/tiny", CACHE),
    ],
)
def test_there_has_to_be_something_to_fetch_and_a_place_on_every_node(uri, cache):
    words = "spec.model.prePull needs spec.model.uri oci://, or hf:// with spec.cache.claimName"
    with pytest.raises(SpecError, match=re.escape(words)):
        deployment(model={"uri": uri, "prePull": {}}, cache=cache)


def test_workers_are_the_same_with_and_without():
    plain = deployment(model={"uri": IMAGE["uri"]})
    ahead = deployment(model=IMAGE)
    assert (plain.pre_pull, ahead.pre_pull is not None) == (None, True)
    assert revision_of(plain, "i") == revision_of(ahead, "i")
    assert pod_digest_of(plain, "i") == pod_digest_of(ahead, "i")


# --- the DaemonSet ---


def test_it_goes_with_its_deployment_and_selects_its_own_pods_only():
    made = manifest(model=IMAGE)
    assert made["metadata"]["name"] == "tiny-pre-pull"
    assert made["metadata"]["ownerReferences"][0]["controller"] is True
    assert made["spec"]["selector"] == {"matchLabels": OURS}
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert OURS.items() <= labels.items()
    assert made["metadata"]["labels"][LABEL_DEPLOYMENT] == "tiny", "by which it is watched"


def test_an_image_is_pulled_by_mounting_it_beside_the_workers_image():
    spec = pod_of(model={**IMAGE, "pullPolicy": "Always"})
    (wait,) = spec["containers"]
    assert spec["volumes"] == [
        {"name": "model", "image": {"reference": "registry.example/tiny:1", "pullPolicy": "Always"}}
    ]
    assert wait["volumeMounts"] == [{"name": "model", "mountPath": "/models/image", "readOnly": True}]
    assert (wait["image"], wait["imagePullPolicy"]) == ("worker:1", "IfNotPresent")
    assert "initContainers" not in spec


def test_a_hub_s_model_is_downloaded_into_the_claim_as_a_worker_would():
    spec = pod_of(model=HUB, cache=CACHE)
    (download,), (wait,) = spec["initContainers"], spec["containers"]
    assert "--directory=/models/cache/org/tiny/main" in download["args"]
    assert {"name": "cache", "mountPath": "/models/cache"} in download["volumeMounts"]
    assert "HF_TOKEN" in str(download)
    assert "HF_TOKEN" not in str(wait)
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}} in spec["volumes"]
    assert spec["securityContext"]["fsGroup"] == 65532
    assert wait["volumeMounts"] == []


@pytest.mark.parametrize("spec", [{"model": IMAGE}, {"model": HUB, "cache": CACHE}], ids=["image", "hub"])
def test_its_pods_prove_to_nobody_that_they_are_workers(spec):
    made = pod_of(**spec, mutual_tls=True)
    assert "DORMOUSE_" not in str(made)
    assert "certificates" not in str(made)
    assert made["automountServiceAccountToken"] is False


def test_its_pods_are_as_restricted_as_workers_and_mount_nothing_that_is_not_there():
    spec = pod_of(model=HUB, cache=CACHE)
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
    mounted = {mount["name"] for each in spec["initContainers"] for mount in each["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}


TEMPLATE = {
    "metadata": {"labels": {"team": "search"}},
    "spec": {
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"x": 1}, "podAntiAffinity": {"y": 1}},
        "imagePullSecrets": [{"name": "registry"}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["hub"]}],
        "serviceAccountName": "somebody",
        "schedulingGates": [{"name": "wait"}],
        "runtimeClassName": "nvidia",
        "volumes": [{"name": "ca", "configMap": {"name": "ca"}}, {"name": "other", "emptyDir": {}}],
        "initContainers": [
            {
                "name": "download",
                "env": [{"name": "HF_ENDPOINT", "value": "https://mirror"}],
                "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
            },
            {"name": "more", "image": "more:1"},
        ],
        "containers": [{"name": "side", "image": "side:1"}],
    },
}


def test_it_is_where_workers_may_be_and_fetches_as_they_would():
    spec = pod_of(model={**HUB, "prePull": {"nodeSelector": {"zone": "a"}}}, cache=CACHE, template=TEMPLATE)
    assert spec["nodeSelector"] == {"gpu": "h100", "zone": "a"}
    assert {"key": "gpu", "operator": "Exists"} in spec["tolerations"]
    assert spec["affinity"] == {"nodeAffinity": {"x": 1}}
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["hostAliases"] == [{"ip": "10.0.0.1", "hostnames": ["hub"]}]
    (download,) = spec["initContainers"]
    assert {"name": "HF_ENDPOINT", "value": "https://mirror"} in download["env"]
    assert {volume["name"] for volume in spec["volumes"]} == {"tmp", "cache", "ca"}
    assert not {"serviceAccountName", "schedulingGates", "runtimeClassName", "resourceClaims"} & spec.keys()
    assert [each["name"] for each in spec["containers"]] == ["wait"]


def test_a_workers_pod_is_not_taken_for_one_nor_one_for_a_workers():
    labels = manifest(model=IMAGE)["spec"]["template"]["metadata"]["labels"]
    owners = [{"controller": True, "kind": "DaemonSet", "apiVersion": "apps/v1", "name": "x", "uid": "y"}]
    found = parse_pods([{"metadata": {"name": "x", "uid": "y", "labels": labels, "ownerReferences": owners}}])
    assert (found.leaders, dict(found.followers), found.foreign) == ((), {}, ())


def test_the_network_policy_guards_its_pods_too():
    arrows = Arrows(ingress=(), egress=(), rank_ports=(), rank_egress=())
    selected = policy_manifest(deployment(model=IMAGE), arrows)["spec"]["podSelector"]["matchExpressions"][0]["values"]
    before = policy_manifest(deployment(), arrows)["spec"]["podSelector"]["matchExpressions"][0]["values"]
    assert selected == [*before, COMPONENT_PRE_PULL]


# --- in the operator's passes ---


def sets(rig):
    return rig.kube.everything(DAEMON_SETS)


def writes(rig):
    return [call for call in rig.kube.mutations() if call.plural == DAEMON_SETS.plural]


def counts(rig, **status):
    """Have the controller of DaemonSets say how far it is."""
    told = {"observedGeneration": 9, "desiredNumberScheduled": 0, "numberReady": 0, "updatedNumberScheduled": 0}
    rig.kube.edit(DAEMON_SETS, "team", "tiny-pre-pull", lambda obj: obj.update(status={**told, **status}))


async def test_it_is_made_and_counted_and_nothing_is_written_at_rest(rig):
    await rig.serving(model=IMAGE)
    assert [each["metadata"]["name"] for each in sets(rig)] == ["tiny-pre-pull"]
    assert "prePull" not in rig.status, "nobody counted yet"
    counts(rig, desiredNumberScheduled=3, numberReady=2, updatedNumberScheduled=3)
    await rig.settle()
    assert rig.status["prePull"] == {"nodes": 3, "readyNodes": 2}
    before = len(rig.kube.mutations())
    for _ in range(3):
        await rig.reconcile()
    assert len(rig.kube.mutations()) == before


async def test_who_has_the_former_model_does_not_count(rig):
    await rig.serving(model=IMAGE)
    counts(rig, desiredNumberScheduled=3, numberReady=3, updatedNumberScheduled=1)
    await rig.settle()
    assert rig.status["prePull"] == {"nodes": 3, "readyNodes": 1}
    counts(rig, observedGeneration=0, desiredNumberScheduled=3, numberReady=3, updatedNumberScheduled=3)
    await rig.settle()
    assert "prePull" not in rig.status


async def test_it_stays_at_zero(rig):
    await rig.serving(model=IMAGE)
    rig.apply(model=IMAGE, lifecycle={"desiredState": "Zero"})
    await rig.settle()
    assert rig.pods == []
    assert len(sets(rig)) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"model": {**IMAGE, "uri": "oci://registry.example/tiny:2"}},
        {"model": {**IMAGE, "prePull": {"nodeSelector": {"zone": "a"}}}},
        {"model": IMAGE, "template": {"spec": {"imagePullSecrets": [{"name": "s"}]}}},
    ],
    ids=["model", "nodes", "template"],
)
async def test_a_change_of_the_spec_reaches_it_once(rig, change):
    await rig.serving(model=IMAGE)
    before, made = copy.deepcopy(sets(rig)[0]["spec"]), len(writes(rig))
    rig.apply(**change)
    await rig.settle()
    assert sets(rig)[0]["spec"] != before
    assert len(writes(rig)) == made + 1


async def test_it_goes_when_it_is_not_wanted_any_more(rig):
    await rig.serving(model=IMAGE)
    rig.apply(model={"uri": IMAGE["uri"]})
    await rig.settle()
    assert sets(rig) == []
    assert "prePull" not in rig.status
    assert [call.verb for call in writes(rig)] == ["apply", "delete"]


async def test_somebody_else_s_of_that_name_is_left_alone_and_not_counted(rig):
    theirs = {"metadata": {"namespace": "team", "name": "tiny-pre-pull"}, "spec": {"x": 1}}
    before = rig.kube.put(DAEMON_SETS, theirs)
    await rig.serving(model=IMAGE)
    assert sets(rig) == [before]
    counts(rig, desiredNumberScheduled=3)
    await rig.settle()
    assert "prePull" not in rig.status


async def test_nobody_looks_for_one_where_none_is_wanted(rig):
    await rig.serving()
    assert [call for call in rig.kube.calls if call.plural == DAEMON_SETS.plural] == []


async def test_one_that_is_refused_is_told_in_the_servers_words(rig):
    refusal = Forbidden("policy says no", status=403, reason="Forbidden")
    rig.kube.fail("apply", DAEMON_SETS, refusal, times=2)
    rig.apply(model=IMAGE)
    for _ in range(2):
        await rig.reconcile()
    assert rig.condition("Scheduled") == ("False", "ChildRejected", "DaemonSet tiny-pre-pull: policy says no")
    assert rig.kube.everything(PODS), "workers are made nevertheless"
