"""Other people's controllers beside a release of ours: built from their Go modules, installed by their own charts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from localkube import extras, node
from localkube.progress import Progress
from localkube.spec import Paths
from tests.install.conftest import Installed, a_release
from tools.bootstrap import cache_root
from tools.kubectl import Cluster

_NAMESPACE = "kueue-system"
_REPOSITORY = "dormouse.test/kueue"
_CONFIG = {  # JSON is YAML
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "health": {"healthProbeBindAddress": ":8081"},
    "metrics": {"bindAddress": ":8443"},
    "webhook": {"port": 9443},
    "integrations": {"frameworks": ["pod"]},
}


@pytest.fixture(scope="session")
def kueue(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kueue, for pods alone; removed with its resources when the run ends."""
    paths = Paths(Path(cache_root()).resolve() / "localkube")
    program = extras.ensure(paths, extras.KUEUE, Progress())
    tag = program.parent.name.rpartition("-")[2]
    node.ensure_program_image(paths, f"{_REPOSITORY}:{tag}", program, file="manager")
    config = tmp_path_factory.mktemp("kueue") / "config.yaml"
    config.write_text(json.dumps(_CONFIG))
    values = {
        "controllerManager.manager.image.repository": _REPOSITORY,
        "controllerManager.manager.image.tag": tag,
        "controllerManager.manager.image.pullPolicy": "Never",
        "controllerManager.manager.resources.requests.cpu": "50m",
        "controllerManager.readinessProbe.initialDelaySeconds": "1",
    }
    said = [part for name, value in values.items() for part in ("--set-string", f"{name}={value}")]
    said += ["--set-file", f"managerConfig.controllerManagerConfigYaml={config}"]
    place = ["--namespace", _NAMESPACE]
    chart = str(program.parent / "chart")
    try:
        cluster.helm("upgrade", "--install", "kueue", chart, *place, "--create-namespace", *said, "--wait")
        yield
    finally:
        cluster.helm("uninstall", "kueue", *place, "--wait")
        cluster.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")


@pytest.fixture(scope="session")
def queued(cluster: Cluster, kueue: None, tiny_model: Path) -> Iterator[Installed]:  # noqa: ARG001  # it is there
    """A release whose models start when Kueue lets them."""
    with a_release(cluster, tiny_model) as mine:
        yield mine
