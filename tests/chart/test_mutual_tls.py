"""Mutual TLS as the chart sets it up: for whom it is on, what rights it takes, what is mounted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from dormouse_operator.manifests.identity import SHARED_SECRETS
from tests.chart.conftest import KUBE_VERSION
from tools.kubectl import Cluster, CommandFailed
from tools.release import CHART

pytestmark = pytest.mark.cluster  # helm comes with it

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]
Rule = tuple[list[str] | None, list[str]]  # names, verbs


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    return next(item for item in manifests if (item["kind"], item["metadata"]["name"]) == (kind, name))


def variables(manifests: list[Manifest], part: str) -> set[str]:
    pod = named(manifests, "Deployment", f"r-dormouse-{part}")["spec"]["template"]["spec"]
    return {entry["name"] for entry in pod["containers"][0]["env"]}


def is_on(manifests: list[Manifest]) -> bool:
    """Return whether it is; all parts have to be of one mind."""
    said = {
        "DORMOUSE_MUTUAL_TLS" in variables(manifests, "operator"),
        "DORMOUSE_MUTUAL_TLS_DIR" in variables(manifests, "gateway"),
        "r-dormouse-gateway-identity" in json.dumps(named(manifests, "Deployment", "r-dormouse-gateway")),
        named(manifests, "Service", "r-dormouse-gateways")["spec"]["ports"][0]["appProtocol"] == "https",
        any(secret_rules(item) for item in manifests if item["kind"] in {"Role", "ClusterRole"}),
    }
    assert len(said) == 1, "the parts differ"
    return said.pop()


def secret_rules(role: Manifest) -> list[Rule]:
    return [(rule.get("resourceNames"), rule["verbs"]) for rule in role["rules"] if "secrets" in rule["resources"]]


@pytest.mark.parametrize(
    ("settings", "wanted"), [((), True), (("true",), True), (("false",), False), (("null",), True)]
)
def test_it_is_on_unless_a_value_says_otherwise(render: Render, settings: tuple[str, ...], wanted: bool):
    assert is_on(render(*(f"mtls.enabled={value}" for value in settings))) is wanted


def test_a_word_that_is_neither_is_refused(render: Render):
    with pytest.raises(CommandFailed, match="enabled"):
        render("mtls.enabled=auto")


def an_operator(*variables: str) -> Manifest:
    """Return the Deployment of a release that is there, with these variables and no pod."""
    env = [{"name": name, "value": "true"} for name in ("DORMOUSE_RELEASE", *variables)]
    labels = {"app": "operator"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "operator", "image": "x", "env": env}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "r-dormouse-operator"}, "spec": spec}


@pytest.mark.parametrize(
    ("there", "settings", "wanted"),
    [
        (None, (), True),
        (an_operator(), (), False),
        (an_operator("DORMOUSE_MUTUAL_TLS"), (), True),
        (an_operator(), ("mtls.enabled=true",), True),
        (an_operator("DORMOUSE_MUTUAL_TLS"), ("mtls.enabled=false",), False),
    ],
    ids=["nothing there", "off stays off", "on stays on", "off can be turned on", "on can be turned off"],
)
def test_an_upgrade_keeps_what_the_release_has_unless_it_is_told(
    cluster: Cluster, namespace: str, there: Manifest | None, settings: tuple[str, ...], wanted: bool
):
    if there:
        cluster.apply(there, namespace)
    values = [part for value in ("crds.enabled=false", *settings) for part in ("--set", value)]
    looked = ["--namespace", namespace, "--kube-version", KUBE_VERSION, "--dry-run=server", *values]
    text = cluster.helm("template", "r", str(CHART), *looked)
    assert is_on([manifest for manifest in yaml.safe_load_all(text) if manifest]) is wanted


@pytest.mark.parametrize(
    ("settings", "kind"), [((), "ClusterRole"), (("watch.namespaces={team}",), "Role")], ids=["everywhere", "named"]
)
def test_the_operator_may_reach_the_secrets_that_it_shares_with_workers_and_no_other(
    render: Render, settings: tuple[str, ...], kind: str
):
    watched = named(render(*settings), kind, "dormouse-system-r-dormouse-operator")
    assert secret_rules(watched) == [(list(SHARED_SECRETS), ["get", "create", "patch"])]


def test_at_home_it_may_make_an_authority_and_write_what_the_gateways_mount(render: Render):
    manifests = render()
    assert secret_rules(named(manifests, "Role", "r-dormouse-operator-lease")) == [
        (None, ["create"]),
        (["r-dormouse-authority"], ["get"]),
        (["r-dormouse-gateway-identity"], ["get", "create", "patch"]),
    ]
    pod = named(manifests, "Deployment", "r-dormouse-gateway")["spec"]["template"]["spec"]
    (volume,) = [item for item in pod["volumes"] if item["name"] == "certificates"]
    assert volume["secret"]["secretName"] == "r-dormouse-gateway-identity"
    (mount,) = [item for item in pod["containers"][0]["volumeMounts"] if item["name"] == "certificates"]
    assert {"name": "DORMOUSE_MUTUAL_TLS_DIR", "value": mount["mountPath"]} in pod["containers"][0]["env"]


def test_somebody_elses_authority_is_only_read(render: Render):
    own = named(render("mtls.authoritySecretName=corp"), "Role", "r-dormouse-operator-lease")
    assert secret_rules(own) == [(["corp"], ["get"]), (["r-dormouse-gateway-identity"], ["get", "create", "patch"])]
