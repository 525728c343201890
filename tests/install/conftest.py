"""Releases of a test's own: installed, upgraded, rolled back and removed with helm as a user does it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from dormouse_api.v1 import inference_pb2_grpc as rpc
from tests.e2e.kit import lasting_kinds
from tools.bootstrap import ROOT
from tools.kubectl import Cluster, CommandFailed
from tools.release import CHART, Release, fill_model_claim, install

MODEL = "steady"
RESOURCES = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1536Mi"}}
CLAIM = ROOT / "examples" / "demo" / "models-claim.yaml"


@dataclass(frozen=True)
class Installed:
    """One release on the cluster, in namespaces of its own, with the small model on a volume."""

    cluster: Cluster
    release: Release

    @property
    def namespace(self) -> str:
        """Return the namespace that it watches."""
        return self.release.watch_namespaces[0]

    @property
    def place(self) -> list[str]:
        """Return how helm finds it."""
        return ["--namespace", self.release.namespace]

    def upgrade(self, *settings: str) -> None:
        """Upgrade to other values, and wait until that is done."""
        values = [part for setting in settings for part in ("--set", setting)]
        waiting = ["--reuse-values", "--wait", "--timeout", "8m"]
        self.cluster.helm("upgrade", self.release.name, str(CHART), *self.place, *values, *waiting)

    def rollback(self) -> None:
        """Go back to the first revision, and wait until that is done."""
        self.cluster.helm("rollback", self.release.name, "1", *self.place, "--wait", "--timeout", "8m")

    def uninstall(self) -> None:
        """Remove the release, and wait until its pods are gone."""
        self.cluster.helm("uninstall", self.release.name, *self.place, "--wait", "--timeout", "8m")

    def pods(self, component: str) -> dict[str, int]:
        """Return uid → restarts of the operator's, gateway's or workers' ("worker") pods, those that end left out."""
        namespace = self.namespace if component == "worker" else self.release.namespace
        pods = self.cluster.list("pods", namespace, f"app.kubernetes.io/component={component}")
        return {
            pod["metadata"]["uid"]: sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"]
        }

    def left(self, namespace: str) -> set[str]:
        """Return all objects of a namespace that carry the release's name in a label or in their own."""
        asked = lasting_kinds(self.cluster)
        named = self.cluster.kubectl("get", asked, "-n", namespace, "-o", "name").split()
        labelled = self.cluster.kubectl(
            "get", asked, "-n", namespace, "-l", f"app.kubernetes.io/instance={self.release.name}", "-o", "name"
        ).split()
        return {name for name in named if self.release.name in name} | set(labelled)


@pytest.fixture
def installed(cluster: Cluster, tiny_model: Path) -> Iterator[Callable[[], Installed]]:
    """Install a release; it is removed with its namespaces when the test ends."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(a_release(cluster, tiny_model))


@contextmanager
def a_release(
    cluster: Cluster,
    model: Path,
    settings: Mapping[str, str] | None = None,
    *,
    install: Callable[..., None] = install,
) -> Iterator[Installed]:
    """Install a release with these values of the chart; it goes with its namespaces when the context ends."""
    name = f"install-{secrets.token_hex(3)}"
    release = Release(name=name, namespace=f"{name}-system", watch_namespaces=(name,))
    try:
        install(cluster, release, *([settings] if settings else ()))
        fill_model_claim(cluster, namespace=name, claim_manifest=CLAIM, model=model)
        yield Installed(cluster, release)
    finally:
        cluster.kubectl("delete", "namespace", name, "--ignore-not-found")
        with suppress(CommandFailed):
            cluster.helm("uninstall", name, "--namespace", release.namespace, "--wait")
        cluster.kubectl("delete", "namespace", release.namespace, "--ignore-not-found", "--wait=false")


@contextmanager
def gateway(installed: Installed) -> Iterator[rpc.InferenceStub]:
    """The release's gateway, through a port-forward."""
    release = installed.release
    with (
        installed.cluster.port_forward(release.gateway, 50051, release.namespace) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield rpc.InferenceStub(channel)
