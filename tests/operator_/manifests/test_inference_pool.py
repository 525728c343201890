"""A deployment that asks for it has an InferencePool, and pods with an HTTP port; without the kind it says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_api.names import LABEL_COMPONENT
from dormouse_kube.api import ENDPOINT_SLICES, INFERENCE_POOLS, PODS, SERVICES
from dormouse_kube.errors import NotFound, Unavailable
from dormouse_operator.manifests import (
    WorkerDefaults,
    pod_digest_of,
    pod_manifest,
    policy_manifest,
    pool_manifest,
)
from dormouse_operator.model import Arrows, Hub, Key, ModelSource, Parallelism, Picker, Serving
from dormouse_operator.model.canary import Canary
from dormouse_operator.testing.nouns import a_deployment, a_pod
from tests.operator_.kit import passes

POOL = {"inferencePool": True}
DEFAULTS = WorkerDefaults("Always", operator_key="op", gateway_key="gw", http_image="gateway:1")


@pytest.fixture
def asked(rig):
    """An operator whose release has a picker, in another namespace than the deployment."""
    rig.picker = Picker("dormouse-gateway", "dormouse-system", 9002)
    has_address(rig, "10.96.0.7")
    rig.restart_operator()
    return rig


def has_address(rig, address):
    """Have the gateways' Service, with this cluster IP."""
    metadata = {"name": "dormouse-gateway", "namespace": "dormouse-system"}
    rig.kube.put(SERVICES, {"metadata": metadata, "spec": {"clusterIP": address}})


def ends(rig):
    """Return the EndpointSlice that leads to the picker."""
    return rig.kube.peek(ENDPOINT_SLICES, rig.key.namespace, "tiny-picker")


def pools(rig):
    return rig.kube.everything(INFERENCE_POOLS)


def services(rig):
    return {each["metadata"]["name"]: each["spec"] for each in rig.kube.everything(SERVICES)}


def writes(rig):
    return [call for call in rig.kube.mutations() if call.plural == INFERENCE_POOLS.plural]


def condition(rig, wanted):
    return next(each for each in rig.status["conditions"] if each["type"] == wanted)


async def test_its_pool_selects_its_workers_and_leads_to_the_picker(asked):
    await asked.serving(serving=POOL)
    (pool,) = pools(asked)
    assert pool["metadata"]["ownerReferences"][0]["controller"] is True
    assert pool["spec"] == {
        "selector": {"matchLabels": {"app.kubernetes.io/instance": "tiny", LABEL_COMPONENT: "worker"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {
            "group": "",
            "kind": "Service",
            "name": "tiny-picker",
            "port": {"number": 9002},
            "failureMode": "FailClose",
        },
    }
    assert services(asked)["tiny-picker"]["clusterIP"] == "None"
    assert "selector" not in services(asked)["tiny-picker"]
    assert ends(asked)["metadata"]["labels"]["kubernetes.io/service-name"] == "tiny-picker"
    assert ends(asked)["metadata"]["ownerReferences"][0]["controller"] is True
    assert (ends(asked)["addressType"], ends(asked)["endpoints"][0]["addresses"]) == ("IPv4", ["10.96.0.7"])
    assert services(asked)["tiny-picker"]["ports"] == ends(asked)["ports"]
    assert ends(asked)["ports"][0]["port"] == 9002
    written = len(writes(asked))
    await passes(asked, 3)
    assert len(writes(asked)) == written, "at rest nobody writes it"
    assert services(asked)["tiny"]["ports"][1]["targetPort"] == "http"
    (pod,) = asked.kube.everything(PODS)
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["http"]


async def test_in_the_releases_own_namespace_it_names_the_gateways_service(rig):
    rig.picker = Picker("dormouse-gateway", rig.key.namespace, 9002)
    rig.restart_operator()
    await rig.serving(serving=POOL)
    (pool,) = pools(rig)
    assert pool["spec"]["endpointPickerRef"]["name"] == "dormouse-gateway"
    assert set(services(rig)) == {"tiny"}
    assert ends(rig) is None
    written = len(writes(rig))
    await passes(rig, 3)
    assert len(writes(rig)) == written, "at rest nobody writes it"


async def test_the_way_to_the_picker_follows_the_gateways_service(asked):
    await asked.serving(serving=POOL)
    has_address(asked, "10.96.0.8")
    await passes(asked, 2)
    assert ends(asked)["endpoints"][0]["addresses"] == ["10.96.0.8"]
    await asked.kube.delete(ENDPOINT_SLICES, asked.key.namespace, "tiny-picker")
    await passes(asked, 2)
    assert ends(asked)


@pytest.mark.parametrize("address", ["fd00::7", "2001:db8::1"])
async def test_the_way_to_the_picker_may_be_of_ipv6(asked, address):
    has_address(asked, address)
    await asked.serving(serving=POOL)
    assert (ends(asked)["addressType"], ends(asked)["endpoints"][0]["addresses"]) == ("IPv6", [address])


async def test_an_alias_of_an_older_release_becomes_a_way_that_every_gateway_finds(asked):
    await asked.serving(serving=POOL)

    def age(service):
        service["spec"] = {"type": "ExternalName", "externalName": "dormouse-gateway.dormouse-system.svc.cluster.local"}

    asked.kube.edit(SERVICES, asked.key.namespace, "tiny-picker", age)
    await passes(asked, 2)
    assert services(asked)["tiny-picker"]["clusterIP"] == "None"


@pytest.mark.parametrize("address", ["", "None"])
async def test_without_an_address_of_the_gateways_there_is_no_pool_and_a_word_why(asked, address):
    has_address(asked, address)
    await asked.serving(serving=POOL)
    assert not pools(asked)
    words = "Service dormouse-system/dormouse-gateway, which leads to the picker, has no cluster IP"
    assert words in condition(asked, "Degraded")["message"]
    asked.kube.finish_deletion(SERVICES, "dormouse-system", "dormouse-gateway")
    await passes(asked, 12)
    assert not pools(asked), "nor without the Service"
    has_address(asked, "10.96.0.7")
    await passes(asked, 12)
    assert len(pools(asked)) == 1
    assert condition(asked, "Degraded")["status"] == "False"


async def test_what_somebody_changed_is_put_right(asked):
    await asked.serving(serving=POOL)
    namespace = asked.key.namespace
    asked.kube.edit(INFERENCE_POOLS, namespace, "tiny", lambda pool: pool["spec"].update(targetPorts=[{"number": 1}]))
    await passes(asked, 2)
    assert pools(asked)[0]["spec"]["targetPorts"] == [{"number": 8000}]
    await asked.kube.delete(SERVICES, namespace, "tiny-picker")
    await passes(asked, 2)
    assert "tiny-picker" in services(asked)


async def test_it_goes_when_it_is_wanted_no_more_also_after_a_failure(asked):
    await asked.serving(serving=POOL)
    asked.kube.fail("delete", INFERENCE_POOLS, Unavailable("not now"))
    asked.apply(serving={})
    await passes(asked, 8)
    assert not pools(asked)
    assert [port["name"] for port in services(asked)["tiny"]["ports"]] == ["grpc"]


async def test_without_the_kind_it_serves_and_says_what_is_missing_until_it_is_there(asked):
    asked.kube.fail("list", INFERENCE_POOLS, NotFound("the server could not find the requested resource"), times=10)
    await asked.serving(serving=POOL)
    assert condition(asked, "Degraded")["reason"] == "NoInferencePool"
    assert "inferencepools.inference.networking.k8s.io" in condition(asked, "Degraded")["message"]
    assert condition(asked, "Ready")["status"] == "True"
    await passes(asked, 12)
    assert len(pools(asked)) == 1
    assert condition(asked, "Degraded")["status"] == "False"


async def test_somebody_elses_pool_is_left_alone_and_told_of(asked):
    theirs = {"metadata": {"name": "tiny", "namespace": asked.key.namespace}, "spec": {}}
    asked.kube.put(INFERENCE_POOLS, theirs)
    await asked.serving(serving=POOL)
    assert pools(asked)[0]["spec"] == {}
    assert "does not belong to this object" in condition(asked, "Degraded")["message"]


async def test_a_release_without_a_picker_says_so(rig):
    await rig.serving(serving=POOL)
    assert not pools(rig)
    assert "gateway.picker.enabled" in condition(rig, "Degraded")["message"]


def test_the_http_api_is_a_container_that_holds_no_secret_and_ends_after_the_worker():
    hub = ModelSource("/models/cache/a/b", None, "tiny", Hub(repo="a/b", revision="main"), None)
    open_one = a_deployment(model=hub, serving=Serving(True, "FailOpen"))
    pod = pod_manifest(open_one, image="worker:1", index=0, defaults=DEFAULTS)
    download, http = pod["spec"]["initContainers"]
    assert (download["name"], http["name"], http["image"]) == ("download", "http", "gateway:1")
    assert http["restartPolicy"] == "Always"
    assert http["args"] == ["--worker=/tmp/inference.sock", "--fail-open", "--", "tiny", "team/tiny"]
    assert "--local-socket=/tmp/inference.sock" in pod["spec"]["containers"][0]["args"]
    assert {each["name"]: each.get("value") for each in http["env"]} == {
        "DORMOUSE_POD_UID": None,
        "DORMOUSE_GATEWAY_KEY": "gw",
    }


def test_pods_of_a_canary_are_members_of_the_pool_whose_requests_it_shares_and_of_its_own():
    asks, canary = Serving(True), Canary(of="tiny", weight=5, is_paused=False, try_name="a")
    standing, shares = a_deployment(serving=asks), a_deployment(key=Key("team", "next"), serving=asks, canary=canary)
    pods = [pod_manifest(each, image="i", index=0, defaults=DEFAULTS) for each in (standing, shares)]
    labels = [each["metadata"]["labels"].items() for each in pods]
    pools = [pool_manifest(each, Picker("gateway", "team", 9002))["spec"]["selector"] for each in (standing, shares)]
    members = [[selector["matchLabels"].items() <= each for each in labels] for selector in pools]
    assert members == [[True, True], [False, True]]
    assert pod_digest_of(shares, "i") != pod_digest_of(replace(shares, canary=replace(canary, of="other")), "i")
    assert pod_digest_of(shares, "i") == pod_digest_of(replace(shares, canary=replace(canary, weight=9)), "i")


def test_followers_of_groups_serve_no_http():
    pair = a_deployment(parallelism=Parallelism(pipeline=2), serving=Serving(True))
    leader = pod_manifest(pair, image="worker:1", index=0, defaults=DEFAULTS)
    follower = pod_manifest(pair, image="worker:1", index=0, defaults=DEFAULTS, leader=a_pod(), ordinal=1)
    assert [each["name"] for each in leader["spec"]["initContainers"]] == ["http"]
    assert "initContainers" not in follower["spec"]


def test_pods_of_before_keep_their_digest_and_a_policy_opens_the_port():
    plain, asks = a_deployment(), a_deployment(serving=Serving(True))
    assert (
        pod_digest_of(plain, "i")
        != pod_digest_of(asks, "i")
        != pod_digest_of(a_deployment(serving=Serving(True, "FailOpen")), "i")
    )
    nothing = Arrows(ingress=(), egress=(), rank_ports=(), rank_egress=())
    assert policy_manifest(plain, nothing)["spec"]["ingress"] == []
    assert policy_manifest(asks, nothing)["spec"]["ingress"] == [{"ports": [{"port": 8000, "protocol": "TCP"}]}]
