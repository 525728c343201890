"""`make bundle`: chart, images, their lists and the CLI in one folder with checksums, for clusters without network."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from typing import Protocol

from tools.bootstrap import ROOT, machine_lock, wheels_dir
from tools.images import content, sbom
from tools.images.build import Builder, Names
from tools.images.settings import Settings
from tools.images.store import Store
from tools.kubectl import Cluster, run
from tools.release import CHART

FOLDER = ROOT / "build" / "bundle" / f"dormouse-{content.VERSION}"
CHECKSUMS = "SHA256SUMS"
CHUNK_BYTES = 1 << 20
GUIDE = """Dormouse {version}: everything to install it where no network is.

1. Check what you have:        sha256sum --check --quiet SHA256SUMS
2. Bring the images to a registry of yours, each of operator, gateway, worker:
                               skopeo copy oci-archive:images/operator.tar \\
                                 docker://registry.example/dormouse/operator:{version}
   or onto each node:          ctr --namespace k8s.io images import images/operator.tar
                               (they are called {repository}/operator:{version} there: leave out --set below)
3. Install the chart:          helm install dormouse dormouse-{version}.tgz --namespace dormouse-system \\
                                 --create-namespace --set image.registry=registry.example/dormouse --wait
4. Install the command line:   python3 -m pip install --no-index --find-links cli 'dormouse[cli]'

sbom/ lists what is in each image (CycloneDX).
"""


class Hands(Protocol):
    """What does the work; each raises with what its program said."""

    def package_chart(self, folder: Path) -> None:
        """Write the chart's archive to a folder."""

    def save_image(self, image: str, path: Path) -> None:
        """Write an image as an OCI archive that knows its name."""

    def collect_cli(self, folder: Path) -> None:
        """Write the wheels of the command line to a folder: ours, and the locked ones that it needs."""


class RealHands:
    """helm, buildah and pip."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        """Take the cluster whose helm is used, and where the images are."""
        self._cluster = cluster
        self._store = store

    def package_chart(self, folder: Path) -> None:
        """See Hands."""
        self._cluster.helm("package", str(CHART), "--destination", str(folder))

    def save_image(self, image: str, path: Path) -> None:
        """See Hands."""
        self._store.push(image, f"oci-archive:{path}:{image}")

    def collect_cli(self, folder: Path) -> None:
        """See Hands."""
        pip = [sys.executable, "-m", "pip"]
        run([*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT])
        offline: list[str | Path] = ["--no-index", "--find-links", wheels_dir(), "--dest", folder]
        locked: list[str | Path] = ["--no-deps", "--require-hashes", "-r", ROOT / "requirements" / "cli.txt"]
        run([*pip, "download", "--quiet", *offline, *locked])


def fill(folder: Path, names: Names, hands: Hands) -> None:
    """Make the folder hold a bundle and nothing else. A folder with checksums is whole: they are written last."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "images").mkdir(parents=True)
    (folder / "cli").mkdir()
    hands.package_chart(folder)
    for part in content.PARTS:
        hands.save_image(names.release(part), folder / "images" / f"{part}.tar")
    sbom.write(ROOT, folder / "sbom", names.repository)
    hands.collect_cli(folder / "cli")
    (folder / "INSTALL.txt").write_text(GUIDE.format(version=content.VERSION, repository=names.repository))
    (folder / CHECKSUMS).write_text(checksums(folder))


def checksums(folder: Path) -> str:
    """Return the lines of all files below the folder as sha256sum --check reads them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return "".join(f"{_sha256(path)}  {path.relative_to(folder)}\n" for path in files)


def _sha256(path: Path) -> str:
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            whole.update(chunk)
    return whole.hexdigest()


def main() -> None:
    """Build what is missing and fill the folder."""
    settings = Settings.from_environment()
    with machine_lock("images"):
        store, names = Store(settings), Names.of(settings)
        Builder(settings, store, names, print).build_missing()
        fill(FOLDER, names, RealHands(Cluster.current(), store))
    print(FOLDER)


if __name__ == "__main__":
    main()
