"""Programs out of Debian packages, in a folder of our own: nothing is installed, no service starts.

For tests that want a real Prometheus. The archives' signatures are checked by apt, as ever.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from localkube.errors import HostError
from localkube.lock import machine_lock
from localkube.progress import Progress
from localkube.spec import Paths

_DOWNLOAD_S = 300


@dataclass(frozen=True, slots=True)
class Package:
    """One Debian package, and a program in it that must run on any Debian (its libraries are the system's)."""

    name: str
    programs: tuple[str, ...]


PROMETHEUS = Package("prometheus", ("prometheus", "promtool"))


def ensure_package(paths: Paths, package: Package, progress: Progress) -> Path:
    """Return the folder of the package's programs; downloads it once (20 MB for Prometheus). Raises HostError."""
    final = paths.extras / f"debian-{package.name}"
    if final.exists():
        return final / "usr" / "bin"
    with machine_lock(f"localkube package {package.name}", progress.say, paths.root / "packages.lock"):
        if not final.exists():
            progress.say(f"downloading Debian package {package.name}: once, into {final}")
            _unpack(package, final)
    return final / "usr" / "bin"


def _unpack(package: Package, final: Path) -> None:
    """Download into a partial folder and unpack there; it takes its name when it is whole."""
    building = final.with_suffix(".partial")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        _download(package, building)
        (archive,) = building.glob("*.deb")
        _run("dpkg", "-x", str(archive), str(building))
        archive.unlink()
        absent = [name for name in package.programs if not (building / "usr" / "bin" / name).exists()]
        if absent:
            raise HostError(f"Debian's {package.name} has no program {', '.join(absent)}")
        building.rename(final)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _download(package: Package, folder: Path) -> None:
    """Download; a machine that never knew any package, or knows old ones, is told of the present ones first."""
    if shutil.which("apt-get") is None:
        raise HostError(f"Debian package {package.name} is needed for its programs, but this machine has no apt-get")
    try:
        _run("apt-get", "download", package.name, folder=folder)
    except HostError:
        _run("apt-get", "update", "-q")
        _run("apt-get", "download", package.name, folder=folder)


def _run(*command: str, folder: Path | None = None) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_S, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        lines = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise HostError(f"`{' '.join(command)}` failed ({done.returncode}):\n{lines}")
