"""A real Envoy before a real cluster: it asks the gateway, which also wakes, and calls the pod's own HTTP port."""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.envoy.config import Wish
from bench.envoy.process import running_envoy
from localkube.build import go_environment
from tools import reference
from tools.bootstrap import cache_root
from tools.release import fullname, install

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

EXTENSION = "sigs.k8s.io/gateway-api-inference-extension@v1.3.0"
DEFINITION = "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"
KIND = "inferencepools.inference.networking.k8s.io"
PROMPT, MAX_TOKENS = [5, 17, 42, 9, 3], 6


@pytest.fixture(scope="module")
def definition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kind's definition, as the extension's own module has it."""
    folder = tmp_path_factory.mktemp("extension")
    (folder / "go.mod").write_text("module extension\n", "utf-8")
    env = {**go_environment(cache_root() / "go"), "GOFLAGS": "-mod=mod -modcacherw"}
    told = subprocess.run(
        ["go", "mod", "download", "-json", EXTENSION], cwd=folder, env=env, check=True, capture_output=True
    )
    return Path(json.loads(told.stdout)["Dir"]) / DEFINITION


@pytest.fixture
def with_picker(cluster, release):
    """The release with its picker; back as it was afterwards."""
    install(cluster, release, {"gateway.picker.enabled": "true"})
    yield release
    install(cluster, release)


def test_a_request_through_envoy_wakes_a_model_and_is_answered_by_its_pod(
    with_picker, deployments, definition, tiny_model, tmp_path, eventually
):
    cluster, namespace = deployments.cluster, deployments.namespace
    expected = reference.greedy_tokens(tiny_model, PROMPT, MAX_TOKENS)
    name = deployments.apply("pooled", serving={"inferencePool": True})
    try:
        eventually(lambda: deployments.condition(name, "Degraded").get("reason") == "NoInferencePool")
        deployments.wait(name, "condition=Ready", timeout_s=240)
        cluster.kubectl("apply", "--server-side", "-f", str(definition))
        pool = eventually(lambda: _pool(cluster, namespace, name))
        assert pool["spec"]["endpointPickerRef"]["name"] == "pooled-picker"
        service = f"service/{fullname(with_picker.name)}-gateway"
        with ExitStack() as stack:
            port = stack.enter_context(cluster.port_forward(service, 9002, with_picker.namespace))
            answers = asyncio.run(_through_envoy(port, tmp_path, deployments, name))
        assert answers == [expected, expected]
        deployments.patch(name, {"serving": {"inferencePool": False}})
        eventually(lambda: not _pool(cluster, namespace, name))
    finally:
        cluster.kubectl("delete", "crd", KIND, "--ignore-not-found")


async def _through_envoy(port: int, folder: Path, deployments: Any, name: str) -> list[list[int]]:
    """Return the tokens of a request, and of one that finds the model asleep."""
    async with running_envoy(Wish(pickers=[port]), folder) as url:
        first = await asyncio.to_thread(_ask, url, name)
        await asyncio.to_thread(deployments.patch, name, {"lifecycle": {"level1AfterSeconds": 1}})
        await asyncio.to_thread(deployments.wait, name, "condition=Asleep", 120)
        return [first, await asyncio.to_thread(_ask, url, name)]


def _ask(url: str, name: str) -> list[int]:
    body = {"model": name, "prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0, "return_token_ids": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        told = json.load(response)
    tokens: list[int] = told["choices"][0]["token_ids"]
    return tokens


def _pool(cluster: Any, namespace: str, name: str) -> dict[str, Any] | None:
    found = cluster.kubectl("get", KIND, name, "-n", namespace, "--ignore-not-found", "-o", "json")
    return json.loads(found) if found.strip() else None
