"""helm, as demo and users run it, and what it renders."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.bootstrap import ROOT
from tools.kubectl import Cluster
from tools.release import CHART

Manifest = dict[str, Any]
NAMESPACE = "dormouse-system"
EVERYTHING = ROOT / "tests" / "chart" / "everything.yaml"
SWITCHES = (
    *("crds.enabled", "crds.keep", "networkPolicy.enabled", "networkPolicy.modelHub", "metrics.scrapeAnnotations"),
    *("dashboards.enabled", "operator.podDisruptionBudget.enabled", "gateway.podDisruptionBudget.enabled"),
)  # that everything.yaml turns off, because their default is on
ALL_ON = tuple(f"{switch}=true" for switch in SWITCHES)
KUBE_VERSION = "1.36.0"  # helm without a cluster assumes one that depends on how helm was built


@pytest.fixture(scope="session")
def render(cluster: Cluster) -> Callable[..., list[Manifest]]:
    """Render the chart as release `r` with --set arguments, over values of a file if one is named."""

    def rendered(*settings: str, file: Path | None = None) -> list[Manifest]:
        values = [part for setting in settings for part in ("--set", setting)]
        values += ["--values", str(file)] if file else []
        place = ["--namespace", NAMESPACE, "--kube-version", KUBE_VERSION]
        text = cluster.helm("template", "r", str(CHART), *place, *values)
        return [manifest for manifest in yaml.safe_load_all(text) if manifest]

    return rendered


@pytest.fixture(scope="session")
def default(render: Callable[..., list[Manifest]]) -> list[Manifest]:
    """What an installation without any value creates."""
    return render()


@pytest.fixture(scope="session")
def everything(render: Callable[..., list[Manifest]]) -> list[Manifest]:
    """What an installation creates in which every value is another than its default and all switches are on."""
    return render(*ALL_ON, file=EVERYTHING)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of this test's own that enforces the restricted Pod Security standard."""
    name = f"chart-{secrets.token_hex(3)}"
    cluster.create_namespace(name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
