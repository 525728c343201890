"""One API server for all fault tests of a run; a namespace with a node of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dormouse_kube.api import Kind
from dormouse_kube.client import KubeClient
from localkube import build, extras
from localkube.progress import Progress
from localkube.spec import Paths
from tests.faults.connections import end_connections
from tests.faults.control_plane import ADMIN, ControlPlane, render_rights
from tests.faults.town import Town
from tests.faults.world import World, definitions, install
from tools.bootstrap import cache_root
from tools.release import CHART

_PATHS = Paths(Path(cache_root()).resolve() / "localkube")
_NAMES = itertools.count(1)
_NAMESPACES = Kind("v1", "Namespace", "namespaces", namespaced=False)


@pytest.fixture(scope="session")
def binaries() -> Path:
    """Where the programs of localkube are."""
    folder = build.bin_dir(_PATHS)
    assert folder.is_dir(), "run make prepare"
    return folder


@pytest.fixture(scope="session")
def toxiproxy() -> Path:
    """The toxiproxy of our pins; built when it is missing."""
    return extras.ensure(_PATHS, extras.TOXIPROXY, Progress()) / "toxiproxy"


@pytest.fixture(scope="session")
def plane(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The API server."""
    plane = ControlPlane(tmp_path_factory.mktemp("plane"), binaries)
    try:
        plane.start()
        yield plane
    finally:
        plane.end()


@pytest.fixture
async def kube(plane: ControlPlane) -> AsyncIterator[KubeClient]:
    """The administrator's client."""
    async with await KubeClient.connect(kubeconfig=str(plane.kubeconfig(ADMIN))) as client:
        yield client
        await end_connections(client._api_client.rest_client.pool_manager)


@pytest.fixture
async def world(
    plane: ControlPlane, kube: KubeClient, toxiproxy: Path, binaries: Path, tmp_path: Path
) -> AsyncIterator[World]:
    """A namespace with the chart's rights for the operators, and a node that runs its pods."""
    namespace = f"test-{next(_NAMES)}"
    await install(kube, definitions())
    await kube.apply(_NAMESPACES, {"metadata": {"name": namespace}}, field_manager="tests")
    await install(kube, render_rights(binaries / "helm", CHART, namespace), ("operator-a", "operator-b"))
    await install(kube, render_rights(binaries / "helm", CHART, namespace, component="gateway"), ("gateway",))
    world = World(plane, kube, namespace, tmp_path, toxiproxy)
    async with world.watching(), world.kubelet.running():
        yield world


@pytest.fixture
async def town(
    plane: ControlPlane, kube: KubeClient, toxiproxy: Path, binaries: Path, tmp_path: Path
) -> AsyncIterator[Town]:
    """A namespace with the chart's rights for gateways; models, workers and gateways are the test's."""
    namespace = f"test-{next(_NAMES)}"
    await install(kube, definitions())
    await kube.apply(_NAMESPACES, {"metadata": {"name": namespace}}, field_manager="tests")
    await install(kube, render_rights(binaries / "helm", CHART, namespace, component="gateway"), ("gateway",))
    town = Town(plane, kube, namespace, tmp_path, toxiproxy)
    try:
        yield town
    finally:
        await town.end()
