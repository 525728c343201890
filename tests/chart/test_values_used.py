"""What each value brings about that a platform team sets, and a default installation leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dormouse_api.names import METRICS_PORT
from dormouse_operator.manifests import WorkerDefaults, pod_manifest
from dormouse_operator.parse import parse_deployment
from tools.kubectl import Cluster
from tools.release import CHART

pytestmark = pytest.mark.cluster  # helm comes with it

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]
PARTS = ("operator", "gateway")


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    return next(found for found in manifests if (found["kind"], found["metadata"]["name"]) == (kind, name))


def pod(manifests: list[Manifest], part: str, prefix: str = "marmot-one") -> Manifest:
    spec: Manifest = named(manifests, "Deployment", f"{prefix}-{part}")["spec"]["template"]["spec"]
    return spec


def kinds(manifests: list[Manifest]) -> list[str]:
    return [manifest["kind"] for manifest in manifests]


def test_a_digest_wins_over_the_tag(everything: list[Manifest]):
    images = [pod(everything, part)["containers"][0]["image"] for part in PARTS]
    assert images == [
        f"registry.example/team/{part}@sha256:{digit * 64}" for part, digit in zip(PARTS, "12", strict=True)
    ]


def test_the_workers_image_has_a_digest_too(render: Render):
    digest = f"sha256:{'3' * 64}"
    env = pod(render(f"image.digests.worker={digest}"), "operator", "r-dormouse")["containers"][0]["env"]
    assert {"name": "DORMOUSE_WORKER_IMAGE", "value": f"ghcr.io/dormouse/worker@{digest}"} in env


@pytest.mark.parametrize("part", PARTS)
def test_who_places_pods_is_obeyed(everything: list[Manifest], part: str):
    spec = pod(everything, part)
    assert spec["priorityClassName"] == "system-cluster-critical"
    (constraint,) = spec["topologySpreadConstraints"]
    assert constraint["topologyKey"] == "topology.kubernetes.io/zone"
    assert constraint["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == part
    assert {"nodeSelector", "tolerations", "affinity", "imagePullSecrets"} <= spec.keys()


@pytest.mark.parametrize("part", PARTS)
def test_without_a_word_pods_spread_over_nodes(default: list[Manifest], part: str):
    deployment = named(default, "Deployment", f"r-dormouse-{part}")["spec"]
    (constraint,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert (constraint["topologyKey"], constraint["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert constraint["labelSelector"] == deployment["selector"]


def test_a_constraint_may_bring_its_own_selector(render: Render):
    own = "gateway.topologySpreadConstraints[0]"
    manifests = render(f"{own}.maxSkew=1", f"{own}.topologyKey=rack", f"{own}.labelSelector.matchLabels.a=b")
    (constraint,) = pod(manifests, "gateway", "r-dormouse")["topologySpreadConstraints"]
    assert constraint["labelSelector"]["matchLabels"]["a"] == "b"


def test_the_picker_may_show_a_certificate_of_its_own(everything: list[Manifest], default: list[Manifest]):
    own = {"name": "DORMOUSE_PICKER_SELF_SIGNED", "value": "true"}
    assert own in pod(everything, "gateway")["containers"][0]["env"]
    assert own not in pod(default, "gateway", "r-dormouse")["containers"][0]["env"]


def test_budgets_let_a_drain_take_as_many_as_is_said(everything: list[Manifest], default: list[Manifest]):
    def taken(manifests: list[Manifest]) -> list[object]:
        return [found["spec"]["maxUnavailable"] for found in manifests if found["kind"] == "PodDisruptionBudget"]

    assert taken(default) == [1, 1]
    assert taken(everything) == [2, "25%"]


@pytest.mark.parametrize("part", PARTS)
def test_one_pod_alone_has_no_budget_that_would_stop_a_drain(render: Render, part: str):
    other = PARTS[1 - PARTS.index(part)]
    budgets = [m["metadata"]["name"] for m in render(f"{part}.replicas=1") if m["kind"] == "PodDisruptionBudget"]
    assert budgets == [f"r-dormouse-{other}"]


def test_the_crd_can_be_made_to_go_with_the_release(render: Render):
    for setting, policy in (("true", "keep"), ("false", "delete")):
        crd = next(m for m in render(f"crds.keep={setting}") if m["kind"] == "CustomResourceDefinition")
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == policy


def test_with_a_secret_of_the_users_none_is_made(everything: list[Manifest]):
    assert "Secret" not in kinds(everything)
    for part in PARTS:
        spec = pod(everything, part)
        names = {volume["secret"]["secretName"] for volume in spec["volumes"] if volume["name"] == "role-tokens"}
        assert names == {"tokens"}


def test_ways_from_outside_lead_to_the_port_that_speaks_their_protocol(everything: list[Manifest]):
    service = named(everything, "Service", "marmot-one-gateway")["spec"]
    ports = {port["name"]: port["port"] for port in service["ports"]}
    for kind, route, port in (("http", "HTTPRoute", "http-api"), ("grpc", "GRPCRoute", "grpc")):
        ingress = named(everything, "Ingress", f"marmot-one-{kind}")["spec"]
        backend = ingress["rules"][0]["http"]["paths"][0]["backend"]["service"]
        assert backend == {"name": "marmot-one-gateway", "port": {"name": port}}
        (reference,) = named(everything, route, f"marmot-one-{kind}")["spec"]["rules"][0]["backendRefs"]
        assert reference == {"name": "marmot-one-gateway", "port": ports[port]}


def test_an_ingress_without_host_and_tls_names_none(render: Render):
    rule = named(render("gateway.ingress.http.enabled=true"), "Ingress", "r-dormouse-http")["spec"]
    assert set(rule) == {"rules"}
    assert set(rule["rules"][0]) == {"http"}


def test_nothing_leads_in_from_outside_and_nothing_needs_another_operator_unless_asked_for(default: list[Manifest]):
    assert not {"Ingress", "HTTPRoute", "GRPCRoute", "ServiceMonitor", "PodMonitor"} & set(kinds(default))


def test_monitors_find_services_and_pods_by_labels_and_ports_that_they_have(everything: list[Manifest]):
    monitor = named(everything, "ServiceMonitor", "marmot-one")["spec"]
    (port,) = (endpoint["port"] for endpoint in monitor["endpoints"])
    wanted = monitor["selector"]["matchLabels"].items()
    found = [
        manifest["spec"]
        for manifest in everything
        if manifest["kind"] == "Service" and wanted <= manifest["metadata"]["labels"].items()
    ]
    scraped = [spec["selector"] for spec in found if port in {item["name"] for item in spec["ports"]}]
    assert sorted(labels["app.kubernetes.io/component"] for labels in scraped) == ["gateway", "operator"]
    for labels in scraped:
        part = labels["app.kubernetes.io/component"]
        assert port in {item["name"] for item in pod(everything, part)["containers"][0]["ports"]}


def test_the_workers_monitor_finds_pods_as_the_operator_makes_them(everything: list[Manifest]):
    monitor = named(everything, "PodMonitor", "marmot-one-workers")["spec"]
    assert monitor["namespaceSelector"] == {"matchNames": ["a", "b"]}
    owl = {"metadata": {"namespace": "a", "name": "owl", "uid": "u"}, "spec": {"model": {"uri": "pvc://a"}}}
    worker = pod_manifest(parse_deployment(owl), image="i", index=0, defaults=WorkerDefaults("Always", "", ""))
    labels = worker["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert set(monitor["podTargetLabels"]) <= labels.keys()
    (endpoint,) = monitor["podMetricsEndpoints"]
    ports = {port["name"]: port["containerPort"] for port in worker["spec"]["containers"][0]["ports"]}
    assert ports[endpoint["port"]] == METRICS_PORT


def test_monitors_keep_the_labels_that_the_programs_give(everything: list[Manifest]):
    (endpoint,) = named(everything, "ServiceMonitor", "marmot-one")["spec"]["endpoints"]
    (workers,) = named(everything, "PodMonitor", "marmot-one-workers")["spec"]["podMetricsEndpoints"]
    assert (endpoint["honorLabels"], workers["honorLabels"]) == (True, True)


def secrets_of_workers(manifests: list[Manifest], prefix: str = "r-dormouse") -> list[str]:
    env = pod(manifests, "operator", prefix)["containers"][0]["env"]
    return [item["value"] for item in env if item["name"] == "DORMOUSE_WORKER_IMAGE_PULL_SECRETS"]


def test_workers_pull_with_secrets_of_their_own_or_of_the_same_names(
    everything: list[Manifest], default: list[Manifest], render: Render
):
    assert secrets_of_workers(everything, "marmot-one") == ["pull-workers,pull-mirror"]
    assert secrets_of_workers(render("imagePullSecrets[0].name=pull")) == ["pull"]
    assert secrets_of_workers(default) == []


def test_workers_of_all_namespaces_are_scraped_where_all_are_watched(render: Render):
    monitor = named(render("metrics.podMonitor.enabled=true"), "PodMonitor", "r-dormouse-workers")
    assert monitor["spec"]["namespaceSelector"] == {"any": True}


def test_extra_objects_may_use_what_the_chart_knows(everything: list[Manifest]):
    assert named(everything, "ConfigMap", "r-extra")["data"] == {"gateway": "marmot-one-gateway"}


def test_only_operator_and_gateway_get_an_accounts_token_and_both_use_it(default: list[Manifest]):
    accounts = [manifest for manifest in default if manifest["kind"] == "ServiceAccount"]
    assert all(account["automountServiceAccountToken"] is False for account in accounts)
    assert [pod(default, part, "r-dormouse")["automountServiceAccountToken"] for part in PARTS] == [True, True]


def test_the_notes_end_with_three_commands(cluster: Cluster):
    place = ["--namespace", "dormouse-system", "--set", "crds.enabled=false"]
    text = cluster.helm("install", "r", str(CHART), "--dry-run=client", *place)
    notes = text.partition("NOTES:")[2]
    commands = [line.split()[:3] for line in notes.splitlines() if line.startswith("  kubectl")]
    assert commands == [["kubectl", "-n", place] for place in ("dormouse-system", "default", "dormouse-system")]
