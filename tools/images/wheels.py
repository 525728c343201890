"""The downloaded Python packages that builds read: those of `make install`, unless the image's Python is another."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tools import bootstrap
from tools.images.content import LOCKS
from tools.images.settings import Settings
from tools.images.store import run_program

IMAGE_PYTHON = (3, 11)  # of BASE_IMAGE, and of the lock files
INSIDE = "/mnt"  # an empty folder of every base: a mount there leaves no trace in a layer
KERNELS_INSIDE = "/srv"  # another one
PIP_CONF = f"[global]\nno-index = true\nfind-links = {INSIDE}\n"


def ensure_wheels(settings: Settings, say: Callable[[str], None]) -> Path:
    """Return the folder with every locked wheel for the image's Python, downloading only what is not there."""
    if sys.version_info[:2] == IMAGE_PYTHON:
        with bootstrap.machine_lock("setup"):
            bootstrap.download_wheels()
        return bootstrap.wheels_dir()
    return download_for_image(settings, say)


def download_for_image(settings: Settings, say: Callable[[str], None]) -> Path:
    """Download the wheels of another Python than this one; those that fit every Python come from `make install`."""
    version = ".".join(map(str, IMAGE_PYTHON))
    final = settings.folder / "wheels" / f"cp{version.replace('.', '')}-{locks_digest(settings.source)}"
    if final.is_dir():
        return final
    say(f"downloading the packages for the images' Python {version} (this one is {sys.version.split()[0]})")
    building = final.with_name(final.name + ".partial")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version", version]
    command += ["--dest", str(building), "--find-links", str(bootstrap.wheels_dir())]
    for lock in LOCKS:
        run_program([*command, "--requirement", str(settings.source / lock)])
    bootstrap.finish(building, final)
    return final


def locks_digest(source: Path) -> str:
    """Return 12 hexadecimal digits over the lock files of the images."""
    return hashlib.sha256(b"".join((source / lock).read_bytes() for lock in LOCKS)).hexdigest()[:12]


def build_mounts(settings: Settings, wheels: Path) -> dict[Path, str]:
    """Return what a build mounts read-only: the wheels, and pip's settings that point at them."""
    conf = settings.folder / "pip.conf"
    conf.write_text(PIP_CONF)
    return {wheels: INSIDE, conf: "/etc/pip.conf", **kernel_mounts(settings.source)}


def kernel_mounts(source: Path) -> dict[Path, str]:
    """Return the folder of what is compiled here: no base has a compiler. None where this machine has none."""
    program = source / bootstrap.KERNELS.relative_to(bootstrap.ROOT)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    if done.returncode:
        return {}
    folder = Path(done.stdout.strip()).parent
    stub = program.with_name("triton_stub.py")
    subprocess.run([sys.executable, stub, folder], capture_output=True, check=False)  # not without Python's headers
    return {folder: KERNELS_INSIDE}
