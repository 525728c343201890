"""Builds KWOK from its pinned Go module, once per content of go.mod and go.sum.

The module is none of localkube's: a change of it makes nobody build Kubernetes again.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from localkube.build import check_free_space, digest_of, go_environment
from localkube.errors import BuildError
from localkube.gotool import find_go

MODULE_DIR = Path(__file__).resolve().parent / "kwok"
PACKAGE = "sigs.k8s.io/kwok/cmd/kwok"
FLAGS = ("-trimpath", "-buildvcs=false", "-ldflags", "-s -w")
NEEDED_BYTES = 3 * 2**30  # module and build cache, gone afterwards


def build(root: Path, say: Callable[[str], None]) -> Path:
    """Return the program, built below `root` if these sources never were. Raises BuildError, HostError."""
    files = ((name, (MODULE_DIR / name).read_bytes()) for name in ("go.mod", "go.sum"))
    program = root / "bin" / digest_of(files) / "kwok"
    if program.exists():
        return program
    check_free_space(root, NEEDED_BYTES, what="building KWOK")
    shutil.rmtree(root / "bin", ignore_errors=True)  # of other sources
    _compile(program, root / "go", say)
    return program


def _compile(program: Path, caches: Path, say: Callable[[str], None]) -> None:
    go = find_go(caches / "toolchain", say)
    building = program.with_suffix(".partial")
    building.parent.mkdir(parents=True)
    say(f"building KWOK with {go}: once, 2-5 minutes on 2 cores")
    env = go_environment(caches)
    command = [str(go), "build", *FLAGS, "-o", str(building), PACKAGE]
    done = subprocess.run(command, cwd=MODULE_DIR, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise BuildError(f"go build of {MODULE_DIR} failed ({done.returncode}):\n{lines}")
    building.rename(program)
    clean = [str(go), "clean", "-cache", "-modcache"]  # go knows how to delete its write-protected modules
    subprocess.run(clean, cwd=MODULE_DIR, env=env, capture_output=True, check=False)
    shutil.rmtree(caches / "build", ignore_errors=True)  # cleaned, it still holds a note or two
