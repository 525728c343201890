"""An InferencePool by the extension's own definition; the Envoy of our example asks the picker that the pool names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import Deployments, wait_until
from tests.install.conftest import Installed, a_release
from tests.platforms.envoys import PORT, ask, asked_meanwhile, envoy_pod
from tests.platforms.guests import ensure_definitions
from tools.bootstrap import ROOT
from tools.kubectl import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

NAMESPACE, MODEL = "envoy", "gull"
DEFINITION = "inference.networking.k8s.io_inferencepools.yaml"


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
    for manifest in envoy_pod("envoy", config):
        cluster.apply(manifest, NAMESPACE)
    try:
        cluster.wait("pod/envoy", "condition=Ready", NAMESPACE)
        with cluster.port_forward("pod/envoy", PORT, NAMESPACE) as port:
            yield f"http://127.0.0.1:{port}"
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


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
    with asked_meanwhile(envoy, name) as answers:
        deployments.patch(name, {"serving": {"failureMode": "FailOpen"}})  # which takes other pods, too
        wait_until(lambda: pool()["endpointPickerRef"]["failureMode"] == "FailOpen")
        wait_until(lambda: [each["metadata"]["name"] for each in deployments.pods(name)] != [pod["metadata"]["name"]])
        wait_until(lambda: len(deployments.pods(name)) == 1)
        deployments.wait(name, "condition=Ready", timeout_s=240)
    assert set(answers) == {"200"}, "none was lost"
    deployments.patch(name, {"serving": {"inferencePool": False}})
    wait_until(lambda: not pool())
