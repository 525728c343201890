"""The manifests under examples/ say what this version understands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dormouse_operator.parse import parse_deployment

ROOT = Path(__file__).resolve().parents[2]
AUTOSCALE = ROOT / "examples" / "autoscale"
ON_GPUS = {"one-gpu", "two-gpus", "kueue"}
MANIFESTS = sorted((ROOT / "examples").glob("*/inferencedeployment.yaml"))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.parent.name)
def test_a_manifest_is_read_as_it_stands(path):
    manifest = yaml.safe_load(path.read_text())
    manifest["metadata"] |= {"namespace": "team", "uid": "u"}
    deployment = parse_deployment(manifest)
    schema = yaml.safe_load((ROOT / "crds/inferencedeployments.yaml").read_text())
    fields = schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert manifest["spec"].keys() <= fields.keys()
    assert manifest["spec"].get("lifecycle", {}).keys() <= fields["lifecycle"]["properties"].keys()
    assert deployment.engine.device == ("cuda" if path.parent.name in ON_GPUS else "cpu")


def test_there_are_examples():
    assert {path.parent.name for path in MANIFESTS} >= {"demo", "scale-to-zero", "one-gpu", "two-gpus", "autoscale"}


def test_the_autoscaler_asks_for_what_the_adapter_makes_of_metrics_that_gateways_have():
    [rule] = yaml.safe_load((AUTOSCALE / "prometheus-adapter.yaml").read_text())["externalRules"]
    [metric] = yaml.safe_load((AUTOSCALE / "hpa.yaml").read_text())["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == rule["name"]["as"]
    asked = set(re.findall(r"dormouse_\w+", f"{rule['seriesQuery']} {rule['metricsQuery']}"))
    gateways = (ROOT / "docs/reference/metrics.md").read_text().partition("## Gateway")[2].partition("## Worker")[0]
    assert asked == {"dormouse_gateway_in_flight", "dormouse_held_requests"} & set(re.findall(r"`(\w+)`", gateways))
