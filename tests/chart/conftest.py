"""helm, as demo and users run it, and what it renders."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tools.kubectl import Cluster
from tools.release import CHART

Manifest = dict[str, Any]
NAMESPACE = "dormouse-system"
KUBE_VERSION = "1.36.0"  # helm without a cluster assumes one that depends on how helm was built


@pytest.fixture(scope="session")
def render(cluster: Cluster) -> Callable[..., list[Manifest]]:
    """Render the chart as release `r` with --set arguments."""

    def rendered(*settings: str) -> list[Manifest]:
        values = [part for setting in settings for part in ("--set", setting)]
        place = ["--namespace", NAMESPACE, "--kube-version", KUBE_VERSION]
        text = cluster.helm("template", "r", str(CHART), *place, *values)
        return [manifest for manifest in yaml.safe_load_all(text) if manifest]

    return rendered


@pytest.fixture(scope="session")
def default(render: Callable[..., list[Manifest]]) -> list[Manifest]:
    """What an installation without any value creates."""
    return render()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of this test's own that enforces the restricted Pod Security standard."""
    name = f"chart-{secrets.token_hex(3)}"
    cluster.create_namespace(name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
