"""The examples of docs/how-to/placement.md can be applied as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dormouse_operator.manifests import WorkerDefaults, pod_manifest, template_complaint
from dormouse_operator.parse import parse_deployment

PAGE = (Path(__file__).parents[2] / "docs/how-to/placement.md").read_text()
EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["spec"]["model"]["uri"])
def test_every_example_makes_a_pod(example):
    metadata = {"namespace": "team", "name": "tiny", "uid": "u1"}
    deployment = parse_deployment({"metadata": metadata, **example})
    assert template_complaint(deployment.placement.template) == ""
    assert pod_manifest(deployment, image="worker:1", index=0, defaults=WorkerDefaults("Always", "a", "b"))["spec"]


def test_there_are_examples():
    assert len(EXAMPLES) == 4
