"""The NetworkPolicies, also those that the operator makes: which arrows they leave, and that the parts need these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dormouse_api.names import COMPONENT_FOLLOWER, COMPONENT_WORKER, GROUP_PORT, LABEL_DEPLOYMENT
from dormouse_operator.manifests import policy_manifest
from dormouse_operator.manifests.common import labels_of
from dormouse_operator.model import Deployment
from dormouse_operator.parse import parse_deployment
from dormouse_operator.settings import parse_settings

pytestmark = pytest.mark.cluster  # helm comes with it

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]
Policies = dict[str, Manifest]
NAMESPACE = "dormouse-system"


def a_deployment(**spec: Any) -> Deployment:
    metadata = {"namespace": "a", "name": "b", "uid": "u"}
    return parse_deployment({"metadata": metadata, "spec": {"model": {"uri": "pvc://a"}, **spec}})


WORKER_LABELS = labels_of(a_deployment())
EVERYBODY = "everybody"
NAME = "app.kubernetes.io/component"
PARTS = ("gateway", "operator", "ranks", "workers")


def policies(manifests: list[Manifest]) -> Policies:
    """Return the spec of each part's policy; those of workers and of a group's pods as the operator makes them."""
    found = [manifest for manifest in manifests if manifest["kind"] == "NetworkPolicy"]
    parts = {policy["metadata"]["name"].rpartition("-")[2]: policy["spec"] for policy in found}
    arrows = parse_settings(operator_environment(manifests)).arrows
    if arrows:
        parts["workers"] = policy_manifest(a_deployment(), arrows)["spec"]
        parts["ranks"] = policy_manifest(a_deployment(parallelism={"pipeline": 2}), arrows)["spec"]
    return parts


def operator_environment(manifests: list[Manifest]) -> dict[str, str]:
    pods = {m["metadata"]["name"]: m["spec"]["template"]["spec"] for m in manifests if m["kind"] == "Deployment"}
    [container] = next(pod for name, pod in pods.items() if name.endswith("-operator"))["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


def name_of(peer: Manifest) -> str:
    """Return whom a peer means, by component and namespace."""
    component = peer.get("podSelector", {}).get("matchLabels", {}).get(NAME, "")
    place = peer.get("namespaceSelector")
    if "matchExpressions" in peer.get("podSelector", {}):
        return "ranks"
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
    ours = {(f"gateway of {NAMESPACE}", 50051), (f"operator of {NAMESPACE}", 50052)}
    assert into(of["workers"]) == metrics | ours


def test_connections_go_only_to_where_they_are_needed(default: list[Manifest]):
    of, workers = policies(default), "worker of any namespace"
    assert out_of(of["operator"]) == DNS | API_SERVER | {("gateway", 50052), (workers, 50052)}
    assert out_of(of["gateway"]) == DNS | API_SERVER | {(workers, 50051)}
    assert out_of(of["workers"]) == DNS | {(EVERYBODY, 443)}


def test_workers_of_models_on_volumes_open_no_connection_at_all(render: Render):
    assert policies(render("networkPolicy.modelHub=false"))["workers"]["egress"] == []


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://otel-collector.observability:4317", 4317),
        ("https://collector:14317/", 14317),
        ("http://[fd00::1]:4317", 4317),
        ("https://collector", 443),
    ],
)
def test_where_spans_are_sent_gateways_and_workers_reach_the_collectors_port_and_names(
    render: Render, endpoint: str, port: int
):
    of = policies(render(f"tracing.endpoint={endpoint}", "networkPolicy.modelHub=false"))
    assert out_of(of["workers"]) == DNS | {(EVERYBODY, port)}
    assert (EVERYBODY, port) in out_of(of["gateway"])
    assert (EVERYBODY, 4317) not in out_of(of["operator"]), "it sends none"


def test_each_arrow_can_be_narrowed(everything: list[Manifest]):
    of, ingress, scrapers = policies(everything), " of ingress", (" of monitoring", 8080)
    assert into(of["operator"]) == {scrapers}
    asked = {(ingress, port) for port in (50051, 8000, 9002, 9003)}
    assert into(of["gateway"]) == {scrapers, *asked, ("operator", 50052)}
    assert {(ingress, 50051), scrapers} < into(of["workers"])
    assert EVERYBODY not in {who for part in ("operator", "gateway", "workers") for who, _ in into(of[part])}
    for part in ("operator", "gateway"):
        assert {("10.0.0.1/32", 8443), ("10.9.9.9/32", 4317)} < out_of(of[part])
    assert ("10.9.9.9/32", 4317) in out_of(of["workers"])


@pytest.mark.parametrize("settings", [(), ("watch.namespaces={a,b}",)])
def test_workers_are_guarded_by_the_operator_wherever_it_watches(render: Render, settings: tuple[str, ...]):
    manifests = render(*settings)
    found = [manifest["metadata"] for manifest in manifests if manifest["kind"] == "NetworkPolicy"]
    assert {metadata["namespace"] for metadata in found} == {NAMESPACE}, "the chart's own are those of its own pods"
    assert policies(manifests)["workers"]["podSelector"]["matchLabels"].items() <= WORKER_LABELS.items()


@pytest.mark.parametrize(
    ("is_enabled", "verbs"),
    [("true", {"get", "list", "watch", "create", "patch"}), ("false", {"list", "watch", "delete"})],
)
def test_the_operator_may_make_policies_where_they_are_wanted_and_remove_them_elsewhere(
    render: Render, is_enabled: str, verbs: set[str]
):
    roles = [m for m in render(f"networkPolicy.enabled={is_enabled}") if m["kind"] == "ClusterRole"]
    rules = [rule for role in roles for rule in role["rules"] if "networkpolicies" in rule["resources"]]
    assert [set(rule["verbs"]) for rule in rules] == [verbs]


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


def test_ranks_reach_each_other_and_the_dns_and_no_door_of_a_worker(render: Render):
    parts = policies(render("networkPolicy.modelHub=false"))
    ranks, workers = parts["ranks"], parts["workers"]
    inside = {"podSelector": ranks["podSelector"]}
    (components,) = ranks["podSelector"]["matchExpressions"]
    assert components["values"] == [COMPONENT_WORKER, COMPONENT_FOLLOWER]
    assert ranks["podSelector"]["matchLabels"] == {LABEL_DEPLOYMENT: "b"}, "of the same deployment"
    (among,) = [rule for rule in ranks["ingress"] if rule not in workers["ingress"]]
    assert among["from"] == [inside], "of the same namespace"
    to_others, dns = ranks["egress"]
    assert to_others == {"to": [inside], "ports": among["ports"]}
    assert {port["port"] for port in dns["ports"]} == {53}

    def is_open(port: int) -> bool:
        return any(item["port"] <= port <= item["endPort"] for item in among["ports"])

    assert all(is_open(port) for port in (GROUP_PORT, GROUP_PORT + 1, 40000, 60000))
    assert not any(is_open(port) for port in (50051, 50052))
