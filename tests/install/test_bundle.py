"""The bundle as INSTALL.txt says, where no route leads out: images onto the node, the chart, the command line."""

from __future__ import annotations

import json
import secrets
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from localkube.host import program
from localkube.spec import Paths
from tests.e2e.kit import Deployments
from tests.install.conftest import CLAIM, MODEL, RESOURCES
from tests.install.cut_off import CutOff, cut_off
from tools.bootstrap import ROOT, cache_root, machine_lock
from tools.bundle import CHECKSUMS, RealHands, fill
from tools.images.build import Names
from tools.images.content import PARTS, VERSION
from tools.images.settings import Settings
from tools.images.store import Store
from tools.kubectl import Cluster, CommandFailed, fill_claim
from tools.release import Release, crd_settings

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1200)]

NO_WAY = "import socket; socket.create_connection(('{host}', {port}), timeout=5)"
CHART = f"dormouse-{VERSION}.tgz"


@dataclass(frozen=True)
class Bundle:
    """The unpacked folder, and the place from where it is installed."""

    folder: Path
    names: Names
    place: CutOff

    def ctr(self, *arguments: str) -> str:
        """Run containerd's own client, as somebody on the node would."""
        socket = Paths(cache_root() / "localkube").containerd_socket
        return self.place.run(program("ctr"), "--address", socket, "--namespace", "k8s.io", *arguments)

    def digest(self, part: str) -> str:
        """Return the digest of a part's image as its archive has it."""
        with tarfile.open(self.folder / "images" / f"{part}.tar") as archive:
            index = archive.extractfile("index.json")
            assert index is not None
            [manifest] = json.load(index)["manifests"]
        return str(manifest["digest"])

    def digest_on_the_node(self, part: str) -> str:
        """Return the digest of the image that the node has under the name that the chart asks for; "" = none."""
        lines = (line.split() for line in self.ctr("images", "list").splitlines()[1:])
        return next((digest for name, _, digest, *_ in lines if name == self.names.release(part)), "")


@pytest.fixture
def bundle(cluster: Cluster, tmp_path: Path) -> Iterator[Bundle]:
    """A bundle of this tree's images, in a folder of its own (4 GB)."""
    if not cluster.local:
        pytest.skip("the images go onto the node by its containerd; the nodes of a cluster of yours are not ours")
    settings = Settings.from_environment()
    names = Names.of(settings)
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="bundle-") as scratch:
        folder = Path(scratch, "bundle")
        with machine_lock("images"):
            fill(folder, names, RealHands(cluster, Store(settings)))
        with cut_off(cluster, folder, tmp_path) as place:
            yield Bundle(folder, names, place)


@pytest.fixture
def release(cluster: Cluster) -> Iterator[Release]:
    """Names for a release, which is removed with its namespaces."""
    name = f"bundle-{secrets.token_hex(3)}"
    release = Release(name=name, namespace=f"{name}-system", watch_namespaces=(name,))
    cluster.create_namespace(name)
    yield release
    cluster.kubectl("delete", "namespace", name)
    with suppress(CommandFailed):
        cluster.helm("uninstall", name, "--namespace", release.namespace, "--wait")
    cluster.kubectl("delete", "namespace", release.namespace, "--ignore-not-found", "--wait=false")


def bring_images(bundle: Bundle) -> None:
    """Replace what the node has under the chart's names by the bundle's images."""
    for part in PARTS:
        with suppress(CommandFailed):  # it has none
            bundle.ctr("images", "remove", bundle.names.release(part))
        assert not bundle.digest_on_the_node(part)
        bundle.ctr("images", "import", f"images/{part}.tar")


def install_chart(bundle: Bundle, cluster: Cluster, release: Release) -> None:
    """Install with the bundle's chart and no image value: then it asks for the names that were imported."""
    values = {"watch.namespaces": "{" + release.watch_namespaces[0] + "}", **crd_settings(cluster, release)}
    settings = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    place = ["--namespace", release.namespace, "--create-namespace", "--wait", "--timeout", "5m"]
    bundle.place.run(cluster.helm_path, "install", release.name, CHART, *place, *settings)


def install_command_line(bundle: Bundle, folder: Path) -> Path:
    """Install the command line into an environment of its own; return the program."""
    bundle.place.run(sys.executable, "-m", "venv", folder)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--find-links", "cli"]
    bundle.place.run(*pip, "dormouse[cli]")
    return folder / "bin" / "dormouse"


def test_a_bundle_is_installed_and_serves_where_no_route_leads_out(
    cluster: Cluster, bundle: Bundle, release: Release, tiny_model: Path, tmp_path: Path
):
    place, namespace = bundle.place, release.watch_namespaces[0]
    assert not place.run("ip", "route", "show", "table", "all", "type", "unicast").strip()
    for host, port in (("10.96.0.1", 443), ("127.0.0.1", 5000)):  # the cluster's network, the images' registry
        with pytest.raises(CommandFailed, match=r"Network is unreachable|Connection refused"):
            place.run(sys.executable, "-c", NO_WAY.format(host=host, port=port))
    place.run("sha256sum", "--check", "--quiet", "--strict", CHECKSUMS)
    bring_images(bundle)
    assert {part: bundle.digest_on_the_node(part) for part in PARTS} == {part: bundle.digest(part) for part in PARTS}
    install_chart(bundle, cluster, release)
    dormouse = install_command_line(bundle, tmp_path / "cli")
    cluster.apply(CLAIM.read_text("utf-8"), namespace)
    image = bundle.names.release("worker")
    fill_claim(cluster, namespace=namespace, claim="models", image=image, folders={"tiny": tiny_model})
    manifest = tmp_path / "model.json"
    manifest.write_text(json.dumps(Deployments(cluster, namespace).manifest(MODEL, resources=RESOURCES)))
    place.run(dormouse, "apply", "-n", namespace, "-f", manifest, "--wait", "--timeout", "240")
    said = place.run(dormouse, "generate", "def sleep(self", "--model", f"{namespace}/{MODEL}", "-n", namespace)
    assert said.strip()
    pods = [*cluster.list("pods", namespace, ""), *cluster.list("pods", release.namespace, "")]
    images = {container["image"] for pod in pods for container in pod["spec"]["containers"]}
    assert images == {bundle.names.release(part) for part in PARTS}
