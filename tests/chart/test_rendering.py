"""What the chart creates, from its values alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tools.bootstrap import ROOT
from tools.kubectl import Cluster, CommandFailed
from tools.release import CHART

pytestmark = pytest.mark.cluster

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]


PEOPLE = {"dormouse-edit", "dormouse-view"}  # roles for people, which come with the definition of the resource


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    return next(manifest for manifest in of_kind(manifests, kind) if manifest["metadata"]["name"] == name)


def pods(manifests: list[Manifest]) -> Iterator[Manifest]:
    return (manifest["spec"]["template"] for manifest in of_kind(manifests, "Deployment"))


def environment(manifests: list[Manifest], part: str) -> dict[str, Any]:
    container = named(manifests, "Deployment", f"r-dormouse-{part}")["spec"]["template"]["spec"]["containers"][0]
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def test_helm_finds_nothing_to_complain_about(cluster: Cluster):
    assert "0 chart(s) failed" in cluster.helm("lint", "--strict", str(CHART))


def test_without_values_everything_that_a_cluster_needs_is_there(default: list[Manifest]):
    kinds = sorted(manifest["kind"] for manifest in default)
    assert kinds == sorted(
        ["ServiceAccount"] * 2
        + ["Deployment"] * 2
        + ["ClusterRole", "ClusterRoleBinding"] * 2
        + ["ClusterRole"] * 2  # for people
        + ["NetworkPolicy"] * 2
        + ["PodDisruptionBudget"] * 2
        + ["Role", "RoleBinding", "Secret", "Service", "Service"]
        + ["ConfigMap"]
        + ["CustomResourceDefinition"] * 4
    )


def test_every_object_says_whose_it_is(default: list[Manifest]):
    for manifest in default:
        if manifest["kind"] == "CustomResourceDefinition":
            continue
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "r"
        assert labels["app.kubernetes.io/part-of"] == "dormouse"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


def test_a_list_of_namespaces_leaves_no_right_outside_of_them(render: Render):
    manifests = render("watch.namespaces={a,b}")
    assert of_kind(manifests, "ClusterRoleBinding") == []
    assert {role["metadata"]["name"] for role in of_kind(manifests, "ClusterRole")} == PEOPLE
    assert of_kind(render("watch.namespaces={a,b}", "crds.enabled=false"), "ClusterRole") == []
    places = sorted(
        (role["metadata"]["namespace"], role["metadata"]["name"]) for role in of_kind(manifests, "RoleBinding")
    )
    assert places == [
        ("a", "dormouse-system-r-dormouse-gateway"),
        ("a", "dormouse-system-r-dormouse-operator"),
        ("b", "dormouse-system-r-dormouse-gateway"),
        ("b", "dormouse-system-r-dormouse-operator"),
        ("dormouse-system", "r-dormouse-operator-lease"),
    ]
    assert environment(manifests, "operator")["DORMOUSE_WATCH_NAMESPACES"] == "a,b"
    assert environment(manifests, "gateway")["DORMOUSE_WATCH_NAMESPACES"] == "a,b"


def test_names_that_the_whole_cluster_shares_carry_namespace_and_release(default: list[Manifest]):
    names = {manifest["metadata"]["name"] for manifest in of_kind(default, "ClusterRole", "ClusterRoleBinding")}
    assert names >= PEOPLE, "these come with the definition of the resource, which the cluster has once"
    assert all(name.startswith("dormouse-system-r-dormouse-") for name in names - PEOPLE)


def test_every_binding_names_a_role_and_an_account_of_this_release(render: Render, default: list[Manifest]):
    for manifests in (default, render("watch.namespaces={a}")):
        here = {(m["kind"], m["metadata"].get("namespace", ""), m["metadata"]["name"]) for m in manifests}
        for binding in of_kind(manifests, "RoleBinding", "ClusterRoleBinding"):
            role, place = binding["roleRef"], binding["metadata"].get("namespace", "")
            assert (role["kind"], place, role["name"]) in here
            for subject in binding["subjects"]:
                assert (subject["kind"], subject["namespace"], subject["name"]) in here


def test_no_rule_has_a_wildcard_or_shows_a_secret_that_it_does_not_name(default: list[Manifest]):
    for role in of_kind(default, "Role", "ClusterRole"):
        for rule in role["rules"]:
            words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not words & {"*", "nodes", "pods/exec", "escalate", "bind", "impersonate"}
            assert "secrets" not in words or rule.get("resourceNames") or rule["verbs"] == ["create"]


def test_the_gateway_may_only_look(default: list[Manifest]):
    role = named(default, "ClusterRole", "dormouse-system-r-dormouse-gateway")
    rights = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert rights == {
        (resource, verb)
        for resource in ("inferencedeployments", "endpointslices", "inferencekeys")
        for verb in ("list", "watch")
    }


def test_who_may_view_or_edit_a_namespace_may_do_so_with_its_deployments_but_for_the_status(default: list[Manifest]):
    roles = {name: named(default, "ClusterRole", name) for name in sorted(PEOPLE)}
    aggregated = {name: _aggregated_to(role) for name, role in roles.items()}
    assert aggregated == {"dormouse-edit": {"edit", "admin"}, "dormouse-view": {"view", "edit", "admin"}}
    rights = {
        name: {(what, verb) for rule in role["rules"] for what in rule["resources"] for verb in rule["verbs"]}
        for name, role in roles.items()
    }
    assert {verb for _, verb in rights["dormouse-view"]} == {"get", "list", "watch"}
    assert not {what for right in rights.values() for what, _ in right} - {
        "inferencedeployments",
        "inferencedeployments/scale",
        "gpupools",
        "inferenceadapters",
        "inferencekeys",
    }


def _aggregated_to(role: Manifest) -> set[str]:
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    return {label.removeprefix(prefix) for label in role["metadata"]["labels"] if label.startswith(prefix)}


@pytest.mark.parametrize("plural", ["inferencedeployments", "gpupools", "inferenceadapters", "inferencekeys"])
def test_the_installed_crd_is_the_one_of_the_tree_and_stays_on_uninstall(default: list[Manifest], plural: str):
    installed = named(default, "CustomResourceDefinition", f"{plural}.inference.dormouse.dev")
    written = yaml.safe_load((ROOT / "crds" / f"{plural}.yaml").read_text())
    assert installed["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert installed["spec"] == written["spec"]


def test_a_second_release_can_leave_the_crd_alone(render: Render):
    assert of_kind(render("crds.enabled=false"), "CustomResourceDefinition") == []


def test_one_tag_and_one_registry_reach_all_three_images(render: Render):
    manifests = render("image.registry=r.example/team", "image.tag=0.1.0-abc")
    images = {pod["spec"]["containers"][0]["image"] for pod in pods(manifests)}
    assert images == {"r.example/team/operator:0.1.0-abc", "r.example/team/gateway:0.1.0-abc"}
    assert environment(manifests, "operator")["DORMOUSE_WORKER_IMAGE"] == "r.example/team/worker:0.1.0-abc"


def test_the_workers_image_can_be_another(render: Render):
    manifests = render("worker.image=r.example/w:1", "worker.imagePullPolicy=Always")
    settings = environment(manifests, "operator")
    assert settings["DORMOUSE_WORKER_IMAGE"] == "r.example/w:1"
    assert settings["DORMOUSE_WORKER_IMAGE_PULL_POLICY"] == "Always"


def test_a_gateway_sees_only_its_own_seeds(default: list[Manifest]):
    def mounted(part: str) -> set[str]:
        spec = named(default, "Deployment", f"r-dormouse-{part}")["spec"]["template"]["spec"]
        return {item["key"] for volume in spec["volumes"] for item in volume.get("secret", {}).get("items", [])}

    assert mounted("operator") == set(), "no item is named: it has all"
    assert mounted("gateway") == {"gateway-seed", "gateway-seed-previous"}


def test_the_operator_tells_the_address_at_which_the_gateways_service_listens(render: Render):
    manifests = render("gateway.service.port=443")
    service = named(manifests, "Service", "r-dormouse-gateway")
    assert [port["port"] for port in service["spec"]["ports"] if port["name"] == "grpc"] == [443]
    address = environment(manifests, "operator")["DORMOUSE_GATEWAY_ADDRESS"]
    assert address == "r-dormouse-gateway.dormouse-system.svc:443"


def test_service_and_deployment_agree_on_labels_and_ports(default: list[Manifest]):
    service = named(default, "Service", "r-dormouse-gateway")["spec"]
    pod = named(default, "Deployment", "r-dormouse-gateway")["spec"]["template"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["ports"]} <= ports


def test_metrics_are_not_behind_the_service_of_clients(default: list[Manifest], everything: list[Manifest]):
    partners = {"grpc-picker", "grpc-scaler"}
    for manifests, more in ((default, set()), (everything, partners)):
        service = next(m for m in of_kind(manifests, "Service") if m["metadata"]["name"].endswith("-gateway"))
        assert {port["name"] for port in service["spec"]["ports"]} == {"grpc", "http-api"} | more
    behind = [m["metadata"]["name"] for m in of_kind(everything, "Service") if _has_metrics(m)]
    assert [name.rpartition("-")[2] for name in behind] == ["metrics", "metrics"]


def _has_metrics(service: Manifest) -> bool:
    return any(port["name"] == "http-metrics" for port in service["spec"]["ports"])


def test_the_operator_finds_every_gateway_by_itself_also_those_that_start_or_end(default: list[Manifest]):
    service = named(default, "Service", "r-dormouse-gateways")["spec"]
    pod = named(default, "Deployment", "r-dormouse-gateway")["spec"]["template"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    (port,) = service["ports"]
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    assert ports[port["targetPort"]] == port["port"], "a headless Service translates no port"
    address = environment(default, "operator")["DORMOUSE_GATEWAY_CONTROL"]
    assert address == f"r-dormouse-gateways.dormouse-system.svc:{port['port']}"


def test_the_release_name_is_not_repeated_in_names(cluster: Cluster):
    text = cluster.helm(
        "template", "dormouse", str(CHART), "--kube-version", "1.36.0", "--show-only", "templates/operator.yaml"
    )
    assert yaml.safe_load(text)["metadata"]["name"] == "dormouse-operator"


@pytest.mark.parametrize(
    ("setting", "named_in_the_message"),
    [
        ("gatway.replicas=2", "gatway"),
        ("gateway.replica=2", "replica"),
        ("gateway.replicas=-1", "replicas"),
        ("gateway.replicas=many", "replicas"),
        ("gateway.service.port=8080", "port"),
        ("gateway.service.port=70000", "port"),
        ("gateway.service.httpPort=8080", "httpPort"),
        ("gateway.apiKeys.secretName=Upper", "secretName"),
        ("gateway.tls.secret=x", "secret"),
        ("operator.logLevel=loud", "logLevel"),
        ("operator.resources.limits.memory=lots", "memory"),
        ("image.tag=a/b", "tag"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("crds.enabled=maybe", "enabled"),
        ("watch.namespaces={Upper}", "namespaces"),
        ("watch.namespaces={a,a}", "namespaces"),
        ("watch.namespaces=a", "namespaces"),
        ("networkPolicy.enabled=maybe", "enabled"),
        ("networkPolicy.workerNamespaces={a}", "workerNamespaces"),
        ("networkPolicy.egress=true", "egress"),
        ("networkPolicy.clients[0].pods=x", "clients"),
        ("networkPolicy.apiServer.cidrs={here}", "cidrs"),
        ("networkPolicy.apiServer.ports={0}", "ports"),
        ("image.digests.operator=sha256:abc", "operator"),
        ("image.digests.cli=x", "cli"),
        ("roleTokens.existingSecret=Upper", "existingSecret"),
        ("gateway.priorityClassName=a/b", "priorityClassName"),
        ("gateway.podDisruptionBudget.maxUnavailable=0", "maxUnavailable"),
        ("gateway.podDisruptionBudget.maxUnavailable=200%", "maxUnavailable"),
        ("gateway.topologySpreadConstraints=x", "topologySpreadConstraints"),
        ("gateway.ingress.http.host=-a", "host"),
        ("gateway.ingress.http.paths={/}", "paths"),
        ("gateway.route.http.enabled=true", "parentRefs"),
        ("gateway.route.grpc.parentRefs[0].namespace=a", "name"),
        ("metrics.serviceMonitor.interval=often", "interval"),
        ("metrics.podMonitor.enable=true", "enable"),
        ("extraObjects[0].kind=ConfigMap", "apiVersion"),
        ("drawnRoleTokens.operator-seed=x", "drawnRoleTokens"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(render: Render, setting: str, named_in_the_message: str):
    with pytest.raises(CommandFailed, match="values don't meet the specifications") as refusal:
        render(setting)
    assert named_in_the_message in str(refusal.value)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_whoever_waits_for_the_release_waits_for_a_replica_of_each_part(render, replicas):
    """Helm takes a Deployment for ready once all but maxUnavailable of its replicas are."""
    settings = (f"operator.replicas={replicas}", f"gateway.replicas={replicas}")
    deployments = [item for item in render(*settings) if item["kind"] == "Deployment"]
    assert len(deployments) == 2
    for deployment in deployments:
        spec = deployment["spec"]
        assert spec["replicas"] - spec["strategy"]["rollingUpdate"]["maxUnavailable"] >= 1
