"""An InferencePool by the extension's own definition; the Envoy of our example asks the picker that the pool names."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any
from urllib.error import URLError

import pytest

from bench.envoy.process import BINARY
from tests.e2e.kit import Deployments, wait_until
from tests.install.conftest import Installed, a_release
from tests.platforms.guests import ensure_definitions
from tools.bootstrap import ROOT
from tools.kubectl import Cluster
from tools.release import worker_image

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

NAMESPACE, PORT, MODEL = "envoy", 8080, "gull"
DEFINITION = "inference.networking.k8s.io_inferencepools.yaml"
_LOOK_S = 0.05


@pytest.fixture(scope="module")
def definition(cluster: Cluster) -> Iterator[None]:
    """The kind InferencePool."""
    file = str(ensure_definitions("sigs.k8s.io/gateway-api-inference-extension", "config/crd/bases") / DEFINITION)
    cluster.kubectl("apply", "--server-side", "-f", file)
    cluster.kubectl("wait", "crd/inferencepools.inference.networking.k8s.io", "--for=condition=Established")
    yield
    cluster.kubectl("delete", "-f", file)


@pytest.fixture(scope="module")
def picked(cluster: Cluster, definition: None, tiny_model: Path) -> Iterator[Installed]:  # noqa: ARG001  # it is there
    """A release whose gateways are asked for endpoints."""
    with a_release(cluster, tiny_model, {"gateway.picker.enabled": "true"}) as mine:
        yield mine


@pytest.fixture
def envoy(picked: Installed) -> Iterator[str]:
    """The Envoy of our example, which asks whom the model's pool names; its address."""
    cluster, host = picked.cluster, f"{MODEL}-picker.{picked.namespace}.svc"
    example = (ROOT / "examples" / "envoy" / "envoy.yaml").read_text()
    config = example.replace("dormouse-gateway.dormouse-system.svc", host)
    assert config != example
    cluster.create_namespace(NAMESPACE, restricted=False)  # Envoy is a file of the host's
    for manifest in _envoy(config):
        cluster.apply(manifest, NAMESPACE)
    try:
        cluster.wait("pod/envoy", "condition=Ready", NAMESPACE)
        with cluster.port_forward("pod/envoy", PORT, NAMESPACE) as port:
            yield f"http://127.0.0.1:{port}"
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def _envoy(config: str) -> Iterator[dict[str, Any]]:
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "envoy"},
        "data": {"envoy.yaml": config},
    }
    container = {
        "name": "envoy",
        "image": worker_image(),  # for its C library
        "command": ["/programs/envoy", "-c", "/config/envoy.yaml", "--concurrency", "1"],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "programs", "mountPath": "/programs", "readOnly": True},
            {"name": "config", "mountPath": "/config"},
        ],
    }
    volumes = [
        {"name": "programs", "hostPath": {"path": str(BINARY.resolve().parent)}},
        {"name": "config", "configMap": {"name": "envoy"}},
    ]
    spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 1}
    yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "envoy"}, "spec": spec}


def ask(url: str, model: str) -> str:
    """Ask for a token; return "200", another status, or why there is none."""
    body = json.dumps({"model": model, "prompt": "Once upon a time", "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
            return str(answer.status)
    except (URLError, OSError) as error:
        return str(error)


def _ask_until(is_over: Event, url: str, model: str) -> list[str]:
    answers = []
    while not is_over.is_set():
        answers.append(ask(url, model))
        time.sleep(_LOOK_S)
    return answers


def test_a_pool_is_written_kept_right_and_followed_and_no_request_through_envoy_is_lost_in_a_roll_out(
    picked: Installed, envoy: str
) -> None:
    cluster, deployments = picked.cluster, Deployments(picked.cluster, picked.namespace)
    name = deployments.apply(MODEL, engine={"kvCacheMemory": "64Mi"}, serving={"inferencePool": True})

    def pool() -> dict[str, Any]:
        found = cluster.list("inferencepools.inference.networking.k8s.io", picked.namespace)
        return found[0]["spec"] if found else {}

    deployments.wait(name, "condition=Ready", timeout_s=240)
    written = pool()
    assert written["targetPorts"] == [{"number": 8000}]
    assert written["endpointPickerRef"]["name"] == f"{MODEL}-picker"
    [ends] = cluster.list("endpointslices", picked.namespace, f"kubernetes.io/service-name={MODEL}-picker")
    gateways = cluster.get("service", picked.release.gateway.removeprefix("service/"), picked.release.namespace)
    assert ends["endpoints"][0]["addresses"] == [gateways["spec"]["clusterIP"]]
    [pod] = deployments.pods(name)
    assert written["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert deployments.condition(name, "Degraded")["status"] == "False"
    patch = json.dumps({"spec": {"targetPorts": [{"number": 81}]}})
    cluster.kubectl("patch", "inferencepools", name, "-n", picked.namespace, "--type=merge", "-p", patch)
    wait_until(lambda: pool() == written)
    wait_until(lambda: ask(envoy, name) == "200")
    is_over = Event()
    with ThreadPoolExecutor(2) as clients:
        asked = [clients.submit(_ask_until, is_over, envoy, name) for _ in range(2)]
        try:
            deployments.patch(name, {"serving": {"failureMode": "FailOpen"}})  # which takes other pods, too
            wait_until(lambda: pool()["endpointPickerRef"]["failureMode"] == "FailOpen")
            wait_until(
                lambda: [each["metadata"]["name"] for each in deployments.pods(name)] != [pod["metadata"]["name"]]
            )
            wait_until(lambda: len(deployments.pods(name)) == 1)
            deployments.wait(name, "condition=Ready", timeout_s=240)
        finally:
            is_over.set()
    answers = [answer for each in asked for answer in each.result()]
    assert set(answers) == {"200"}, "none was lost"
    deployments.patch(name, {"serving": {"inferencePool": False}})
    wait_until(lambda: not pool())
