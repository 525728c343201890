"""The manifests under examples/ say what this version understands."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dormouse_operator.parse import parse_deployment

ROOT = Path(__file__).resolve().parents[2]
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
