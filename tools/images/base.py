"""The Debian base image, made from packages where no registry can be reached.

It stands in for python:3.11-slim-bookworm: the Dockerfile works on either.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from tools.images.settings import ImagesFailed, Settings
from tools.images.store import SYSTEM_PATH, Store, run_program

SUITE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
RECIPE = "1"  # counts changes of the steps below


def base_key() -> str:
    """Return the name of the base's recipe; another recipe makes another base, and new layers on it."""
    return hashlib.sha256("\n".join([SUITE, PACKAGES, *LEFT_OUT, RECIPE]).encode()).hexdigest()[:8]


def base_name() -> str:
    """Return the base image's name in our storage."""
    return f"localhost/dormouse/base:{base_key()}"


def ensure_base(store: Store, settings: Settings, say: Callable[[str], None]) -> str:
    """Make the base image if it is missing and return its name."""
    if base_name() in store.ids():
        return base_name()
    say(f"making the base image: Debian {SUITE} with Python, without a registry; 1-2 minutes")
    container = store.run("from", "scratch").strip()
    try:
        root = Path(store.run("mount", container).strip())
        run_program(bootstrap_command(root), log=settings.folder / "base.log")
        finish(root)
        store.run("umount", container)
        store.run("commit", "--quiet", container, base_name())
    finally:
        store.run("rm", container)
    return base_name()


def bootstrap_command(root: Path) -> list[str]:
    """Return the command that unpacks Debian into an empty folder."""
    if program := shutil.which("mmdebstrap", path=SYSTEM_PATH):
        left_out = [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
        return [program, "--mode=root", "--variant=minbase", f"--include={PACKAGES}", *left_out, SUITE, str(root)]
    if program := shutil.which("debootstrap", path=SYSTEM_PATH):
        return [program, "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root)]
    raise ImagesFailed("mmdebstrap is missing; install it, on Debian with: apt-get install mmdebstrap")


def finish(root: Path) -> None:
    """Let pip install, and leave a place for the settings that a build mounts: then no layer holds them."""
    for mark in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        mark.unlink()
    for pattern in ("var/cache/apt/archives/*.deb", "var/lib/apt/lists/*_*", "var/log/*.log"):
        for leftover in root.glob(pattern):
            leftover.unlink()
    (root / "etc/pip.conf").touch()
