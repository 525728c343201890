"""The images as the cluster runs them: under the restricted standard, on a read-only root file system."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tools.images.content import PARTS
from tools.kubectl import Cluster, run
from tools.release import image_tag, tool_command, tool_env, worker_image

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

Seen = dict[str, Any]
MODULES = {
    "operator": ["dormouse_operator", "dormouse_api.auth", "grpc", "kopf", "kubernetes"],
    "gateway": ["dormouse_gateway", "dormouse_api.auth", "grpc", "kubernetes"],
    "worker": ["dormouse_worker", "dormouse_api.auth", "grpc", "torch"],
}
LOOK = """
import importlib.util, json, os, pathlib, shutil, sys
def has(name):
    return importlib.util.find_spec(name) is not None
for name in MODULES:
    __import__(name)
def writable(path):
    try:
        (pathlib.Path(path) / "probe").touch()
    except OSError:
        return False
    return True
LOOKED_FOR = ("torch", "transformers", "kopf", "kubernetes", "pip", "ensurepip", "setuptools")
own = [m for name, m in sys.modules.items() if name.startswith("dormouse_") and getattr(m, "__cached__", None)]
print(json.dumps({
    "user": [os.getuid(), os.getgid()],
    "modules": [name for name in LOOKED_FOR if has(name)],
    "programs": [name for name in ("pip", "pip3", "gcc", "cc", "g++", "ld") if shutil.which(name)],
    "writable": [path for path in ("/", "/opt/dormouse/lib", "/opt/venv", "/tmp") if writable(path)],
    "without_bytecode": [m.__name__ for m in own if not pathlib.Path(m.__cached__).exists()],
    "own_modules": len(own),
    "parts": sorted(path.name for path in pathlib.Path("/opt/dormouse/lib").iterdir()),
}))
"""


def pod(part: str, modules: list[str]) -> dict[str, Any]:
    """Return a pod that runs LOOK in a part's image."""
    restricted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "look",
        "image": worker_image().replace("/worker:", f"/{part}:"),
        "command": ["python", "-c", f"MODULES = {modules!r}\n{LOOK}"],
        "securityContext": restricted,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": part}, "spec": spec}


@pytest.fixture(scope="module")
def seen(cluster: Cluster) -> Iterator[dict[str, Seen]]:
    """What LOOK saw in each part's image, run by the image's own user."""
    namespace = f"images-{secrets.token_hex(3)}"
    cluster.create_namespace(namespace)
    try:
        for part in PARTS:
            cluster.apply(pod(part, MODULES[part]), namespace)
        for part in PARTS:
            cluster.wait(f"pod/{part}", "jsonpath={.status.phase}=Succeeded", namespace, timeout_s=90)
        yield {part: json.loads(cluster.kubectl("logs", part, "-n", namespace)) for part in PARTS}
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def test_operator_and_gateway_hold_nothing_that_installs_compiles_or_infers(seen: dict[str, Seen]):
    assert seen["operator"]["modules"] == ["kopf", "kubernetes"]
    assert seen["gateway"]["modules"] == ["kubernetes"]
    assert seen["operator"]["programs"] == seen["gateway"]["programs"] == []


def test_the_worker_has_torch_and_no_kubernetes(seen: dict[str, Seen]):
    present = set(seen["worker"]["modules"])
    assert {"torch", "transformers"} <= present
    assert not present & {"kopf", "kubernetes", "pip"}


def test_each_image_holds_its_own_part_and_what_it_stands_on(seen: dict[str, Seen]):
    assert seen["operator"]["parts"] == ["dormouse_api", "dormouse_kube", "dormouse_operator"]
    assert seen["gateway"]["parts"] == ["dormouse_api", "dormouse_gateway", "dormouse_kube"]
    assert seen["worker"]["parts"] == ["dormouse_api", "dormouse_worker"]


@pytest.mark.parametrize("part", PARTS)
def test_every_image_runs_as_nobody_and_can_write_only_to_tmp(seen: dict[str, Seen], part: str):
    assert seen[part]["user"] == [65532, 65532]
    assert seen[part]["writable"] == ["/tmp"]


@pytest.mark.parametrize("part", PARTS)
def test_our_code_comes_compiled(seen: dict[str, Seen], part: str):
    assert seen[part]["own_modules"] > 2
    assert seen[part]["without_bytecode"] == []


def test_the_tag_that_the_chart_gets_is_the_one_that_was_built():
    assert worker_image().endswith(f"/worker:{image_tag()}")


def test_no_image_is_bigger_than_its_budget():
    said = run(tool_command("tools.images", "sizes"), env=tool_env())
    assert all(f"{part}: " in said for part in PARTS)
