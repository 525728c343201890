"""One release of its own per run, in namespaces of its own, on the real cluster; removed afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from dormouse_api.v1 import inference_pb2_grpc as rpc
from tests.e2e.kit import Deployments, Model, Models, wait_until
from tools.bootstrap import ROOT
from tools.kubectl import Cluster, CommandFailed
from tools.release import Release, fill_model_claim, install


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Wait for a watched condition, with a deadline."""
    return wait_until


@pytest.fixture(scope="session")
def release(cluster: Cluster) -> Iterator[Release]:
    """A release of this run's own."""
    run_id = secrets.token_hex(3)
    release = Release(
        name=f"e2e-{run_id}", namespace=f"e2e-{run_id}-system", watch_namespaces=(f"e2e-{run_id}", f"e2e-{run_id}-b")
    )
    try:
        install(cluster, release)
        yield release
    finally:
        for namespace in release.watch_namespaces:
            cluster.kubectl("delete", "namespace", namespace, "--ignore-not-found")
        with suppress(CommandFailed):
            cluster.helm("uninstall", release.name, "--namespace", release.namespace, "--wait")
        cluster.kubectl("delete", "namespace", release.namespace, "--ignore-not-found", "--wait=false")


@pytest.fixture(scope="session")
def namespace(cluster: Cluster, release: Release, tiny_model: Path) -> str:
    """The namespace that this run's operator watches, with the model on a volume."""
    name = release.watch_namespaces[0]
    claim = ROOT / "examples" / "demo" / "models-claim.yaml"
    fill_model_claim(cluster, namespace=name, claim_manifest=claim, model=tiny_model)
    return name


@pytest.fixture
def deployments(cluster: Cluster, namespace: str) -> Iterator[Deployments]:
    """Deployments that live for one test."""
    made = Deployments(cluster, namespace)
    yield made
    for name in list(made.made):
        made.delete(name)


@pytest.fixture(scope="session")
def gateway(cluster: Cluster, release: Release) -> Iterator[rpc.InferenceStub]:
    """The gateway, through a port-forward to loopback."""
    with (
        cluster.port_forward(release.gateway, 50051, release.namespace) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield rpc.InferenceStub(channel)


@pytest.fixture(scope="session")
def shared(cluster: Cluster, namespace: str) -> Iterator[Deployments]:
    """A deployment `shared` with two replicas that read-only tests use together."""
    made = Deployments(cluster, namespace)
    made.apply("shared", replicas=2)
    made.wait("shared", "condition=Ready", timeout_s=240)
    yield made
    made.delete("shared")


@pytest.fixture(scope="session")
def model(shared: Deployments, gateway: rpc.InferenceStub) -> Model:
    """The shared deployment's model, through the gateway, which learns that it serves later than its status says so."""
    [name] = shared.made
    wait_until(lambda: Models(gateway).answers(name, [5], 1))
    return Model(gateway, name)


@pytest.fixture
def model_of(gateway: rpc.InferenceStub) -> Models:
    """Any model, by name."""
    return Models(gateway)
