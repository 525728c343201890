"""The chart on a real cluster."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tools.kubectl import Cluster, CommandFailed
from tools.release import CHART, image_tag

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

Manifest = dict[str, Any]
Helm = Callable[..., None]
SECRET = "r-dormouse-role-tokens"


def pod_of(deployment: Manifest) -> Manifest:
    """Return a pod as the deployment would make it, under an account that every namespace has."""
    template = copy.deepcopy(deployment["spec"]["template"])
    template["spec"]["serviceAccountName"] = "default"
    metadata = {"name": deployment["metadata"]["name"], "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def dry_run(cluster: Cluster, manifest: Manifest, namespace: str) -> str:
    return cluster.kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))


@pytest.fixture
def helm(cluster: Cluster, namespace: str) -> Iterator[Helm]:
    """Install or upgrade release `r` in the test's namespace, watching that one only; removed afterwards."""

    def upgrade(*settings: str) -> None:
        values = ["crds.enabled=false", f"watch.namespaces={{{namespace}}}", f"image.tag={image_tag()}", *settings]
        arguments = [part for value in values for part in ("--set", value)]
        cluster.helm("upgrade", "--install", "r", str(CHART), "--namespace", namespace, *arguments)

    yield upgrade
    with suppress(CommandFailed):
        cluster.helm("uninstall", "r", "--namespace", namespace)


def seeds(cluster: Cluster, namespace: str) -> dict[str, str]:
    data = cluster.get("secret", SECRET, namespace)["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def generations(cluster: Cluster, namespace: str) -> dict[str, int]:
    return {item["metadata"]["name"]: item["metadata"]["generation"] for item in cluster.list("deployments", namespace)}


def test_pods_meet_the_restricted_standard(
    cluster: Cluster, namespace: str, default: list[Manifest], everything: list[Manifest]
):
    for deployment in (manifest for manifest in (*default, *everything) if manifest["kind"] == "Deployment"):
        assert "created (server dry run)" in dry_run(cluster, pod_of(deployment), namespace)


def test_the_standard_would_have_refused_a_careless_pod(cluster: Cluster, namespace: str, default: list[Manifest]):
    careless = pod_of(next(manifest for manifest in default if manifest["kind"] == "Deployment"))
    del careless["spec"]["securityContext"]["runAsNonRoot"]
    with pytest.raises(CommandFailed, match="violates PodSecurity"):
        dry_run(cluster, careless, namespace)


def test_seeds_are_random_and_survive_an_upgrade_without_a_restart(cluster: Cluster, namespace: str, helm: Helm):
    helm()
    first = seeds(cluster, namespace)
    assert len({first["operator-seed"], first["gateway-seed"]}) == 2
    assert first["operator-seed-previous"] == first["gateway-seed-previous"] == ""
    before = generations(cluster, namespace)
    helm("metrics.scrapeAnnotations=true")
    assert seeds(cluster, namespace) == first
    assert generations(cluster, namespace) == before


def test_a_rotation_draws_new_seeds_once_and_keeps_those_of_before(cluster: Cluster, namespace: str, helm: Helm):
    helm()
    first, before = seeds(cluster, namespace), generations(cluster, namespace)
    helm("roleTokens.rotation=2026-11-23")
    second = seeds(cluster, namespace)
    for role in ("operator", "gateway"):
        assert second[f"{role}-seed-previous"] == first[f"{role}-seed"] != second[f"{role}-seed"]
    assert all(generations(cluster, namespace)[name] > generation for name, generation in before.items())
    helm("roleTokens.rotation=2026-11-23", "operator.logLevel=debug")
    assert seeds(cluster, namespace) == second
    helm("roleTokens.rotation=")
    assert seeds(cluster, namespace) == second, "who forgets the value rotates nothing"
    helm("roleTokens.rotation=2026-11-24")
    third = seeds(cluster, namespace)
    for role in ("operator", "gateway"):
        assert third[f"{role}-seed-previous"] == second[f"{role}-seed"] != third[f"{role}-seed"]


def test_an_upgrade_from_tokens_draws_seeds_that_come_from_none_of_them(cluster: Cluster, namespace: str, helm: Helm):
    helm()
    old = {"data": None, "stringData": {"operator-token": "seen by every worker", "gateway-token": "so was this"}}
    cluster.kubectl("patch", "secret", SECRET, "-n", namespace, "--type=merge", "-p", json.dumps(old))
    helm()
    fresh = seeds(cluster, namespace)
    assert len(fresh["operator-seed"]) == len(fresh["gateway-seed"]) == 48
    assert fresh["operator-seed-previous"] == fresh["gateway-seed-previous"] == ""


def test_new_seeds_start_the_pods_anew(cluster: Cluster, namespace: str, helm: Helm):
    helm()
    first, before = seeds(cluster, namespace), generations(cluster, namespace)
    cluster.kubectl("delete", "secret", SECRET, "-n", namespace)
    helm()
    assert seeds(cluster, namespace) != first
    assert all(generations(cluster, namespace)[name] > generation for name, generation in before.items())


def test_an_uninstalled_release_leaves_nothing_in_its_namespace(cluster: Cluster, namespace: str, helm: Helm):
    helm()
    cluster.helm("uninstall", "r", "--namespace", namespace, "--wait")
    kinds = "deployments,services,serviceaccounts,secrets,configmaps,roles,rolebindings"
    left = cluster.list(kinds, namespace, "app.kubernetes.io/instance=r")
    assert left == []
