"""Istio itself reads Gateway, HTTPRoute and InferencePool, and has an Envoy ask our picker: nothing of it is ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import Deployments, wait_until
from tests.install.conftest import Installed, a_release
from tests.platforms.envoys import PORT, ask, asked_meanwhile
from tests.platforms.istio import GATEWAY, gateway, route, running_istio
from tools.kubectl import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(2400)]

NAMESPACE, MODEL = "ingress", "heron"
NEVER = {"level1AfterSeconds": None, "level2AfterSeconds": None, "zeroAfterSeconds": None}
SLEEPS = {  # by how it wakes: the rung that it sleeps on, how it looks there, and what brings it there
    "level1": ("Level1", "condition=Asleep", {"level1AfterSeconds": 1}),
    "level2": ("Level2", "condition=Asleep", {"level1AfterSeconds": 1, "level2AfterSeconds": 2}),
    "cold": ("Zero", "jsonpath={.status.phase}=Zero", {"level1AfterSeconds": 1, "zeroAfterSeconds": 2}),
}


@pytest.fixture(scope="module")
def picked(cluster: Cluster, tiny_model: Path) -> Iterator[Installed]:
    """A release whose gateways are asked for endpoints, beside Istio."""
    with running_istio(cluster), a_release(cluster, tiny_model, {"gateway.picker.enabled": "true"}) as mine:
        yield mine


@pytest.fixture(scope="module")
def door(picked: Installed) -> Iterator[str]:
    """A Gateway of Istio's; its address."""
    cluster = picked.cluster
    cluster.create_namespace(NAMESPACE, restricted=False)  # Envoy is a file of the host's
    try:
        for manifest in gateway(NAMESPACE):
            cluster.apply(manifest, NAMESPACE)
        cluster.wait(f"gateway/{GATEWAY}", "condition=Programmed", NAMESPACE)
        cluster.wait(f"pod/{GATEWAY}", "condition=Ready", NAMESPACE)
        with cluster.port_forward(f"pod/{GATEWAY}", PORT, NAMESPACE) as port:
            yield f"http://127.0.0.1:{port}"
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def heron(picked: Installed, door: str) -> Deployments:
    """A model behind that gateway."""
    cluster, deployments = picked.cluster, Deployments(picked.cluster, picked.namespace)
    name = deployments.apply(MODEL, engine={"kvCacheMemory": "64Mi"}, serving={"inferencePool": True})
    deployments.wait(name, "condition=Ready", timeout_s=240)
    cluster.apply(route(NAMESPACE, name), picked.namespace)
    wait_until(lambda: ask(door, name) == "200")
    return deployments


def conditions(cluster: Cluster, namespace: str, pool: str) -> dict[str, str]:
    """Return what the gateway says of a pool."""
    found: dict[str, Any] = cluster.get("inferencepool", pool, namespace).get("status", {})
    told = [each for parent in found.get("parents", ()) for each in parent["conditions"]]
    return {each["type"]: each["status"] for each in told}


def test_a_pool_of_ours_is_accepted_and_who_asks_for_no_model_of_ours_is_told_so(
    picked: Installed, door: str, heron: Deployments
) -> None:
    """The answer is our picker's: the route sends every name to the same pool."""
    accepted = {"Accepted": "True", "ResolvedRefs": "True"}
    wait_until(lambda: conditions(picked.cluster, heron.namespace, MODEL) == accepted)
    assert ask(door, "nobody") == "HTTP Error 404: Not Found"


@pytest.mark.parametrize("path", SLEEPS)
def test_a_request_for_a_model_that_sleeps_or_has_no_pod_waits_and_is_answered(
    door: str, heron: Deployments, path: str
) -> None:
    """One request each, held in Istio's call to the picker: Istio knows the pod by the time that it is sent there."""
    rung, look, after = SLEEPS[path]
    heron.patch(MODEL, {"lifecycle": {**NEVER, "minActiveSeconds": 0, **after}})
    heron.wait(MODEL, f"jsonpath={{.status.lifecycle.rung}}={rung}")
    heron.wait(MODEL, look)
    heron.patch(MODEL, {"lifecycle": {**NEVER, "minActiveSeconds": 60}})
    assert ask(door, MODEL) == "200"
    heron.wait(MODEL, "jsonpath={.status.phase}=Active")
    actuation = heron.status(MODEL)["lastActuation"]
    assert (actuation["path"], actuation["reason"]) == (path, "request")


def test_no_request_is_lost_in_a_roll_out(door: str, heron: Deployments) -> None:
    """The new pod is asked only once Istio knows it, the old one no more once it goes."""
    assert ask(door, MODEL) == "200"
    [before] = heron.pods(MODEL)
    with asked_meanwhile(door, MODEL) as answers:
        heron.patch(MODEL, {"engine": {"maxNumSeqs": 4}})
        wait_until(lambda: [pod["metadata"]["uid"] for pod in heron.pods(MODEL)] != [before["metadata"]["uid"]])
        wait_until(lambda: len(heron.pods(MODEL)) == 1)
        heron.wait(MODEL, "condition=Ready", timeout_s=240)
    assert set(answers) == {"200"}
