"""The worker's image computes with every backend that it ships, on a read-only root file system without a compiler."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest

from tests.chart.test_images import pod
from tools.bootstrap import ROOT
from tools.kubectl import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]

PROGRAM = "tests/chart/backend_program.py"
FILES = ("tests/gpu/attention_world.py", "tests/gpu/attention_cases.py", PROGRAM)


@pytest.fixture(scope="module")
def said(cluster: Cluster) -> Any:
    """What the program said."""
    namespace = f"backends-{secrets.token_hex(3)}"
    manifest = pod("worker", [])
    [container] = manifest["spec"]["containers"]
    container["command"] = ["python", f"/cases/{PROGRAM}"]
    container["env"] = [
        {"name": "TRITON_INTERPRET", "value": "1"},
        {"name": "PYTHONPATH", "value": "/cases:/opt/dormouse/lib"},
    ]
    items = [{"key": path.replace("/", "."), "path": path} for path in FILES]
    container["volumeMounts"].append({"name": "cases", "mountPath": "/cases"})
    manifest["spec"]["volumes"].append({"name": "cases", "configMap": {"name": "cases", "items": items}})
    files = {path.replace("/", "."): (ROOT / path).read_text("utf-8") for path in FILES}
    cluster.create_namespace(namespace)
    try:
        cluster.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cases"}, "data": files}, namespace
        )
        cluster.apply(manifest, namespace)
        cluster.wait("pod/worker", "jsonpath={.status.containerStatuses[0].state.terminated}", namespace, timeout_s=300)
        logs = cluster.kubectl("logs", "worker", "-n", namespace)
        [ended] = cluster.get("pod", "worker", namespace)["status"]["containerStatuses"]
        assert ended["state"]["terminated"]["exitCode"] == 0, logs
        yield json.loads(logs.splitlines()[-1])
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def test_every_backend_that_a_processor_can_try_computes_what_the_textbook_says(said: Any):
    assert said["wrong"] == []
    assert {name for name, num_cases in said["held"].items() if num_cases > 3} == {"native", "sdpa", "triton"}


def test_triton_finds_what_it_would_compile_at_its_first_launch(said: Any):
    assert said["stub"].startswith("/opt/dormouse/lib/dormouse_worker/native/dormouse_triton_")
