"""The NetworkPolicies: which arrows they leave, and that these are the ones that the parts need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dormouse_api.names import COMPONENT_FOLLOWER, COMPONENT_WORKER, GROUP_PORT
from dormouse_operator.manifests.common import labels_of
from dormouse_operator.parse import parse_deployment

pytestmark = pytest.mark.cluster  # helm comes with it

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]
Policies = dict[str, Manifest]
NAMESPACE = "dormouse-system"
WORKER_LABELS = labels_of(
    parse_deployment({"metadata": {"namespace": "a", "name": "b", "uid": "u"}, "spec": {"model": {"uri": "pvc://a"}}})
)
EVERYBODY = "everybody"
NAME = "app.kubernetes.io/component"
PARTS = ("gateway", "operator", "ranks", "workers")


def policies(manifests: list[Manifest]) -> Policies:
    """Return the spec of each part's policy; of the workers' the last."""
    found = [manifest for manifest in manifests if manifest["kind"] == "NetworkPolicy"]
    return {policy["metadata"]["name"].rpartition("-")[2]: policy["spec"] for policy in found}


def name_of(peer: Manifest) -> str:
    """Return whom a peer means, by component and namespace."""
    component = peer.get("podSelector", {}).get("matchLabels", {}).get(NAME, "")
    place = peer.get("namespaceSelector")
    if place is None:
        return component or peer["ipBlock"]["cidr"]
    names = place.get("matchLabels", {})
    return f"{component} of {names.get('kubernetes.io/metadata.name', 'any namespace')}"


def arrows(rules: list[Manifest], direction: str) -> set[tuple[str, int]]:
    """Return (peer, port) for all rules of one direction."""
    return {
        (who, port["port"])
        for rule in rules
        for who in ([name_of(peer) for peer in rule[direction]] if direction in rule else [EVERYBODY])
        for port in rule["ports"]
    }


def into(policy: Manifest) -> set[tuple[str, int]]:
    return arrows(policy["ingress"], "from")


def out_of(policy: Manifest) -> set[tuple[str, int]]:
    return arrows(policy["egress"], "to")


DNS = {(EVERYBODY, 53)}
API_SERVER = {(EVERYBODY, 443), (EVERYBODY, 6443)}


def test_whatever_no_policy_allows_is_denied_in_both_directions(default: list[Manifest]):
    of = policies(default)
    assert sorted(of) == sorted(PARTS)
    assert all(policy["policyTypes"] == ["Ingress", "Egress"] for policy in of.values())


def test_connections_come_only_from_where_they_are_needed(default: list[Manifest]):
    of = policies(default)
    metrics = {(EVERYBODY, 8080)}
    assert into(of["operator"]) == metrics
    assert into(of["gateway"]) == metrics | {(EVERYBODY, 50051), (EVERYBODY, 8000), ("operator", 50052)}
    ours = {(f"gateway of {NAMESPACE}", 50051), (f"gateway of {NAMESPACE}", 50052), (f"operator of {NAMESPACE}", 50052)}
    assert into(of["workers"]) == metrics | ours


def test_connections_go_only_to_where_they_are_needed(default: list[Manifest]):
    of, workers = policies(default), "worker of any namespace"
    assert out_of(of["operator"]) == DNS | API_SERVER | {("gateway", 50052), (workers, 50052)}
    assert out_of(of["gateway"]) == DNS | API_SERVER | {(workers, 50051), (workers, 50052)}
    assert out_of(of["workers"]) == DNS | {(EVERYBODY, 443)}


def test_workers_of_models_on_volumes_open_no_connection_at_all(render: Render):
    assert policies(render("networkPolicy.modelHub=false"))["workers"]["egress"] == []


def test_each_arrow_can_be_narrowed(everything: list[Manifest]):
    of, ingress, scrapers = policies(everything), " of ingress", (" of monitoring", 8080)
    assert into(of["operator"]) == {scrapers}
    assert into(of["gateway"]) == {scrapers, (ingress, 50051), (ingress, 8000), ("operator", 50052)}
    assert {(ingress, 50051), scrapers} < into(of["workers"])
    assert EVERYBODY not in {who for part in ("operator", "gateway", "workers") for who, _ in into(of[part])}
    for part in ("operator", "gateway"):
        assert {("10.0.0.1/32", 8443), ("10.9.9.9/32", 4317)} < out_of(of[part])
    assert ("10.9.9.9/32", 4317) in out_of(of["workers"])


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        ((), ["dormouse-system"]),
        (("watch.namespaces={a,b}",), ["a", "b"]),
        (("watch.namespaces={a,b}", "networkPolicy.workerNamespaces={c}"), ["c"]),
    ],
)
def test_the_workers_of_each_namespace_are_guarded(render: Render, settings: Any, places: list[str]):
    found = [manifest for manifest in render(*settings) if manifest["kind"] == "NetworkPolicy"]
    workers = [policy for policy in found if policy["metadata"]["name"].endswith("-workers")]
    assert [policy["metadata"]["namespace"] for policy in workers] == places


def test_policies_select_the_pods_that_there_are_and_name_the_ports_they_are_called_at(default: list[Manifest]):
    of = policies(default)
    for deployment in (manifest for manifest in default if manifest["kind"] == "Deployment"):
        pod, part = deployment["spec"]["template"], deployment["metadata"]["name"].rpartition("-")[2]
        assert of[part]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        ports = {port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
        assert ports == {port for _, port in into(of[part])}
    assert of["workers"]["podSelector"]["matchLabels"].items() <= WORKER_LABELS.items()


def test_a_peer_that_is_one_of_ours_is_named_by_labels_that_it_has(default: list[Manifest]):
    pods = [manifest["spec"]["template"] for manifest in default if manifest["kind"] == "Deployment"]
    labels = [WORKER_LABELS, *(pod["metadata"]["labels"] for pod in pods)]
    rules = [rule for policy in policies(default).values() for rule in (*policy["ingress"], *policy["egress"])]
    peers = [
        peer["podSelector"]["matchLabels"] for rule in rules for peer in (rule.get("from") or rule.get("to") or [])
    ]
    assert len(peers) > 5
    assert all(any(peer.items() <= known.items() for known in labels) for peer in peers)


def test_policies_can_be_left_to_others(render: Render):
    assert policies(render("networkPolicy.enabled=false")) == {}


def test_ranks_reach_each_other_and_the_dns_and_no_door_of_a_worker(default: list[Manifest]):
    ranks = policies(default)["ranks"]
    inside = {"podSelector": ranks["podSelector"]}
    (components,) = ranks["podSelector"]["matchExpressions"]
    assert components["values"] == [COMPONENT_WORKER, COMPONENT_FOLLOWER]
    among, scraped = ranks["ingress"]
    assert among["from"] == [inside], "of the same namespace"
    assert [port["port"] for port in scraped["ports"]] == [8080]
    to_others, dns = ranks["egress"]
    assert to_others == {"to": [inside], "ports": among["ports"]}
    assert {port["port"] for port in dns["ports"]} == {53}

    def is_open(port: int) -> bool:
        return any(item["port"] <= port <= item["endPort"] for item in among["ports"])

    assert all(is_open(port) for port in (GROUP_PORT, GROUP_PORT + 1, 40000, 60000))
    assert not any(is_open(port) for port in (50051, 50052))
