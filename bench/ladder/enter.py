"""The way into the ladder's sandbox and back: builds what is missing, runs one part there, returns what it found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
from rich.console import Console

from bench.fleet import kwok_build, sandbox
from bench.gateway_figures import Held
from bench.ladder.findings import ColdStarts
from bench.ladder.world import KWOK_ROOT, ROOT
from localkube import build
from localkube.progress import Progress
from localkube.spec import Paths
from tools.bootstrap import ROOT as TREE
from tools.bootstrap import cache_root, machine_lock

PARTS = ("api", "kube", "operator", "gateway", "worker_image", ".")

T = TypeVar("T")


def check() -> None:
    """Raise SystemExit with a sentence unless namespaces can be made here."""
    try:
        sandbox.check()
    except sandbox.SandboxError as error:
        raise SystemExit(str(error)) from error


def held(count: int, reps: int, console: Console) -> list[Held]:
    """Return what became of so many requests that arrived during one wake, again and again."""
    return _run(list[Held], console, "held", count, reps)


def coldstarts(samples: int, console: Console) -> ColdStarts:
    """Return what wakes and cold starts took, each wake so often."""
    return _run(ColdStarts, console, "coldstart", samples)


def _run(kind: type[T], console: Console, part: str, *numbers: int) -> T:
    return run_inside(kind, console, "bench.ladder.inside", ROOT, part, *numbers)


def run_inside(kind: type[T], console: Console, program: str, root: Path, part: str, *numbers: int) -> T:
    """Run a part of a program in a sandbox of its own. Raises SystemExit, after its words, if it failed."""
    progress = Progress(write=lambda line: console.print("  " + line, markup=False, highlight=False))
    with machine_lock(root.name), tempfile.TemporaryDirectory(prefix="dormouse-bench-") as folder:
        out = Path(folder) / "found.json"
        with _prepared(root, progress):
            command = [sys.executable, "-m", program, part, str(out), *map(str, numbers)]
            done = subprocess.run(sandbox.enter_command(command), env=environment(), check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
        return msgspec.json.decode(out.read_bytes(), type=kind)


def environment() -> dict[str, str]:
    """Return the environment of the program inside: it finds all parts, and knows which network is the host's."""
    path = os.pathsep.join(str(TREE / part) for part in PARTS)
    return {**os.environ, "PYTHONPATH": path, **sandbox.host_note()}


@contextmanager
def _prepared(root: Path, progress: Progress) -> Iterator[None]:
    """Build what is missing and begin without any state; logs stay until the next run."""
    paths = Paths(root)
    root.mkdir(parents=True, exist_ok=True)
    build.build(Paths(cache_root() / "localkube"), progress)
    kwok_build.build(KWOK_ROOT, progress.say)
    for folder in (paths.state, paths.logs):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(paths.state, ignore_errors=True)
        paths.kubeconfig.unlink(missing_ok=True)  # of a cluster that is no more
