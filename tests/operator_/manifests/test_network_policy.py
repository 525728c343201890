"""Every deployment has a network policy of its own while the release wants that, and at rest nobody writes it."""

from __future__ import annotations

import pytest

from dormouse_api.names import (
    COMPONENT_FOLLOWER,
    COMPONENT_WORKER,
    GROUP_PORT,
    INFERENCE_PORT,
    LABEL_COMPONENT,
    LABEL_DEPLOYMENT,
    LABEL_GROUP_SIZE,
)
from dormouse_kube.api import NETWORK_POLICIES, PODS
from dormouse_kube.errors import Unavailable
from dormouse_operator.manifests import policy_manifest
from dormouse_operator.manifests.common import group_pods_selector
from dormouse_operator.model import UNMADE, Arrows, Engine, KvStore, Parallelism
from dormouse_operator.testing.nouns import a_deployment, a_pod
from tests.operator_.kit import PAIR, passes, pods_of

GATEWAYS = {
    "from": [{"podSelector": {"matchLabels": {"app": "gateway"}}}],
    "ports": [{"protocol": "TCP", "port": 50051}],
}
HUB = {"ports": [{"protocol": "TCP", "port": 443}]}
DNS = {"ports": [{"protocol": "UDP", "port": 53}]}
BELOW = {"protocol": "TCP", "port": 1024, "endPort": 50050}
ARROWS = Arrows(ingress=(GATEWAYS,), egress=(HUB, DNS), rank_ports=(BELOW,), rank_egress=(DNS,))


@pytest.fixture
def guarded(rig):
    """An operator whose release wants policies."""
    rig.arrows = ARROWS
    rig.restart_operator()
    return rig


def policies(rig):
    return rig.kube.everything(NETWORK_POLICIES)


def writes(rig):
    return [call for call in rig.kube.mutations() if call.plural == NETWORK_POLICIES.plural]


def is_selected(policy, pod):
    selector, labels = policy["spec"]["podSelector"], pod["metadata"]["labels"]
    (component,) = selector["matchExpressions"]
    return selector["matchLabels"].items() <= labels.items() and labels[component["key"]] in component["values"]


def opens_ranks(policy):
    return any(rule["ports"] == [BELOW] for rule in policy["spec"]["ingress"])


async def test_a_deployment_has_a_policy_of_its_own_with_the_releases_arrows(guarded):
    await guarded.serving()
    (policy,) = policies(guarded)
    assert policy["metadata"]["name"] == "tiny"
    assert policy["metadata"]["ownerReferences"][0]["controller"] is True
    assert policy["spec"] == {
        "podSelector": group_pods_selector("tiny"),
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [GATEWAYS],
        "egress": [HUB, DNS],
    }


def test_workers_with_a_store_of_blocks_reach_each_others_door_and_nobody_elses():
    pods, doors = [{"podSelector": group_pods_selector("tiny")}], [{"protocol": "TCP", "port": INFERENCE_PORT}]
    spec = policy_manifest(a_deployment(engine=Engine(kv_store=KvStore(1 << 30))), ARROWS)["spec"]
    assert spec["ingress"] == [GATEWAYS, {"from": pods, "ports": doors}]
    assert spec["egress"] == [HUB, DNS, {"to": pods, "ports": doors}]


async def test_it_is_there_before_the_first_pod_has_a_node(guarded):
    guarded.apply()
    await guarded.reconcile()
    assert len(policies(guarded)) == 1


async def test_all_its_pods_and_no_others_are_selected(guarded):
    await guarded.serving(replicas=2)
    (policy,) = policies(guarded)
    assert all(is_selected(policy, pod) for pod in guarded.kube.everything(PODS))
    assert not is_selected(policy, {"metadata": {"labels": {LABEL_DEPLOYMENT: "other", LABEL_COMPONENT: "worker"}}})


async def test_pods_of_a_group_reach_each_other_and_those_of_no_other_deployment(guarded):
    await guarded.serving(parallelism=PAIR)
    (spec,) = (policy["spec"] for policy in policies(guarded))
    components = {"key": LABEL_COMPONENT, "operator": "In", "values": [COMPONENT_WORKER, COMPONENT_FOLLOWER]}
    ranks = {"matchLabels": {LABEL_DEPLOYMENT: "tiny"}, "matchExpressions": [components]}
    assert spec["podSelector"] == ranks
    assert spec["ingress"] == [GATEWAYS, {"from": [{"podSelector": ranks}], "ports": [BELOW]}]
    assert spec["egress"] == [HUB, DNS, {"to": [{"podSelector": ranks}], "ports": [BELOW]}], "the DNS once"
    assert BELOW["port"] <= GROUP_PORT <= BELOW["endPort"] < INFERENCE_PORT


@pytest.mark.parametrize(("before", "after"), [(PAIR, {"tensor": 1}), ({"tensor": 1}, PAIR)])
async def test_while_groups_and_single_pods_follow_each_other_the_policy_is_right_for_both(guarded, before, after):
    await guarded.serving(parallelism=before)
    guarded.apply(parallelism=after)
    seen = set()
    for _ in range(40):
        await passes(guarded, 1)
        (policy,) = policies(guarded)
        assert all(is_selected(policy, pod) for pod in guarded.kube.everything(PODS))
        groups = [pod for pod in pods_of(guarded, COMPONENT_WORKER) if LABEL_GROUP_SIZE in pod["metadata"]["labels"]]
        assert opens_ranks(policy) or not groups
        seen.add((len(pods_of(guarded, COMPONENT_WORKER)), len(groups)))
    assert (2, 1) in seen, "both were there"
    assert opens_ranks(policy) is (after is PAIR)


def test_a_pod_that_only_says_it_is_of_a_group_opens_nothing():
    forged = a_pod(group_size=2, owner_uid=UNMADE)
    assert not opens_ranks(policy_manifest(a_deployment(), ARROWS, [forged]))
    assert opens_ranks(policy_manifest(a_deployment(), ARROWS, [forged, a_pod(group_size=2)]))


def test_ranks_find_each_other_by_name_where_workers_may_go_nowhere():
    closed = Arrows(ingress=(), egress=(), rank_ports=(BELOW,), rank_egress=(DNS,))
    spec = policy_manifest(a_deployment(parallelism=Parallelism(pipeline=2)), closed)["spec"]
    assert spec["egress"][1:] == [DNS]


async def test_at_rest_nothing_is_written_and_nothing_asked(guarded):
    await guarded.serving()
    assert len(writes(guarded)) == 1
    before = len(guarded.kube.calls)
    for _ in range(3):
        await guarded.reconcile()
    assert [call for call in guarded.kube.calls[before:] if call.plural == NETWORK_POLICIES.plural] == []
    assert len(writes(guarded)) == 1


async def test_it_costs_one_look_and_one_write_at_the_creation(guarded):
    await guarded.serving(replicas=3)
    calls = [call.verb for call in guarded.kube.calls if call.plural == NETWORK_POLICIES.plural]
    assert [verb for verb in calls if verb not in {"list", "watch"}] == ["get", "apply"]


async def test_what_somebody_changed_is_put_right(guarded):
    await guarded.serving()
    guarded.kube.edit(NETWORK_POLICIES, "team", "tiny", lambda policy: policy["spec"].update(ingress=[{}]))
    await guarded.settle()
    assert policies(guarded)[0]["spec"]["ingress"] == [GATEWAYS]


async def test_what_somebody_deleted_comes_back(guarded):
    await guarded.serving()
    guarded.kube.finish_deletion(NETWORK_POLICIES, "team", "tiny")
    await guarded.settle()
    assert len(policies(guarded)) == 1


async def test_other_arrows_reach_the_policies_that_there_are(guarded):
    await guarded.serving()
    guarded.arrows = Arrows(ingress=(GATEWAYS,), egress=(), rank_ports=(), rank_egress=())
    guarded.restart_operator()
    await guarded.settle()
    assert policies(guarded)[0]["spec"]["egress"] == []
    assert len(writes(guarded)) == 2


async def test_what_the_api_server_leaves_out_is_not_written_again(guarded):
    guarded.arrows = Arrows(ingress=(GATEWAYS,), egress=(), rank_ports=(), rank_egress=())
    guarded.restart_operator()
    await guarded.serving()
    guarded.kube.edit(NETWORK_POLICIES, "team", "tiny", lambda policy: policy["spec"].pop("egress"))
    await guarded.settle()
    assert len(writes(guarded)) == 1


async def test_without_arrows_there_is_none_and_none_is_looked_for(rig):
    await rig.serving()
    assert policies(rig) == []
    assert [call for call in rig.kube.calls if call.plural == NETWORK_POLICIES.plural and call.verb == "get"] == []


async def test_policies_go_when_the_release_wants_none_any_more(guarded):
    await guarded.serving()
    guarded.arrows = None
    guarded.restart_operator()
    await guarded.settle()
    assert policies(guarded) == []


async def test_one_that_could_not_be_removed_is_removed_later(guarded):
    await guarded.serving()
    guarded.arrows = None
    guarded.restart_operator()
    late = Unavailable("later", status=503, reason="ServiceUnavailable")
    guarded.kube.fail("delete", NETWORK_POLICIES, late, times=3)
    await guarded.settle()
    assert policies(guarded) == []


@pytest.mark.parametrize("wanted", [ARROWS, None])
async def test_a_policy_of_somebody_else_is_left_alone(guarded, wanted):
    guarded.arrows = wanted
    guarded.restart_operator()
    before = guarded.kube.put(NETWORK_POLICIES, {"metadata": {"namespace": "team", "name": "tiny"}, "spec": {}})
    await guarded.serving()
    assert policies(guarded) == [before]
    assert (guarded.condition("Degraded")[1] == "PolicyNameTaken") is (wanted is not None)


async def test_when_somebody_elses_goes_ours_comes(guarded):
    guarded.kube.put(NETWORK_POLICIES, {"metadata": {"namespace": "team", "name": "tiny"}, "spec": {}})
    await guarded.serving()
    assert (await guarded.reconcile() or 60) <= 30, "nobody will tell of it, so it looks again"
    guarded.kube.finish_deletion(NETWORK_POLICIES, "team", "tiny")
    await guarded.settle()
    assert len(policies(guarded)) == 1
    assert guarded.condition("Degraded")[1] == "AsExpected"


async def test_what_the_api_server_says_of_one_is_told_and_the_model_serves(guarded):
    late = Unavailable("no such field", status=500, reason="InternalError")
    guarded.kube.fail("apply", NETWORK_POLICIES, late, times=4)
    await guarded.serving()
    assert any("NetworkPolicy tiny: no such field" in event for event in guarded.events)
    assert guarded.condition("Ready")[0] == "True"
