"""The kustomize base says what the chart says, and kustomize and the API server take it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tools.charts import differences
from tools.kubectl import Cluster
from tools.kustomize import BASE, NAMESPACE, files, rendered, without_helm

pytestmark = pytest.mark.cluster  # helm and kubectl come with it

Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def built(cluster: Cluster) -> list[Manifest]:
    """What kustomize makes of the base."""
    return list(yaml.safe_load_all(cluster.kubectl("kustomize", str(BASE))))


def test_the_base_is_what_the_chart_makes(cluster: Cluster):
    assert differences(files(rendered(cluster)), BASE) == [], "run make charts"


def test_kustomize_takes_all_of_it(cluster: Cluster, built: list[Manifest]):
    def names(manifests: list[Manifest]) -> set[tuple[str, str]]:
        return {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}

    plurals = ("inferencedeployments", "gpupools", "inferenceadapters", "inferencekeys")
    definitions = {("CustomResourceDefinition", f"{plural}.inference.dormouse.dev") for plural in plurals}
    assert names(built) == names(rendered(cluster)) | {("Namespace", NAMESPACE)} | definitions


def test_people_with_view_or_edit_in_a_namespace_reach_its_deployments_as_with_the_chart(built: list[Manifest]):
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    roles = {manifest["metadata"]["name"]: manifest for manifest in built if manifest["kind"] == "ClusterRole"}
    labels = {name: roles[name]["metadata"]["labels"] for name in ("dormouse-view", "dormouse-edit")}
    found = {
        name: {key.removeprefix(aggregate) for key in of if key.startswith(aggregate)} for name, of in labels.items()
    }
    assert found == {"dormouse-view": {"view", "edit", "admin"}, "dormouse-edit": {"edit", "admin"}}


def test_the_definition_of_each_resource_is_in_it_once(built: list[Manifest]):
    assert [manifest["kind"] for manifest in built].count("CustomResourceDefinition") == 4


def test_nothing_in_it_claims_to_be_helms(built: list[Manifest]):
    text = yaml.safe_dump_all(built)
    assert "helm.sh" not in text
    assert "managed-by: Helm" not in text
    assert "app.kubernetes.io/managed-by: kustomize" in text


def test_selectors_survive_the_change_of_labels(built: list[Manifest]):
    deployments = [manifest["spec"] for manifest in built if manifest["kind"] == "Deployment"]
    assert len(deployments) == 2
    for spec in deployments:
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_an_object_without_labels_gets_none():
    assert without_helm({"kind": "x", "metadata": {"name": "a"}})["metadata"]["labels"] == {}


def test_no_secret_is_written_into_it(built: list[Manifest]):
    assert "Secret" not in {manifest["kind"] for manifest in built}
