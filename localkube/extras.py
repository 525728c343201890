"""Go programs that only some tests need: each a module of its own, built once per content, apart from the cluster's."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localkube.build import TOOLS_DIR, digest_of, go_environment, read_sources
from localkube.errors import BuildError
from localkube.gotool import find_go
from localkube.lock import machine_lock
from localkube.packages import PROMETHEUS, ensure_package
from localkube.progress import Progress
from localkube.spec import Paths
from tools.bootstrap import cache_root


@dataclass(frozen=True, slots=True)
class Extra:
    """One program: a folder under tools/ with its go.mod and go.sum, and the package that is its main."""

    name: str
    package: str
    chart: str = ""  # folder of its module, such as module@charts/name, that is kept beside the program; "" = none

    @property
    def source(self) -> Path:
        """Where its go.mod lies."""
        return TOOLS_DIR / self.name


TOXIPROXY = Extra("toxiproxy", "github.com/Shopify/toxiproxy/v2/cmd/server")
KUEUE = Extra("kueue", "sigs.k8s.io/kueue/cmd/kueue", chart="sigs.k8s.io/kueue@charts/kueue")


def program(paths: Paths, extra: Extra) -> Path:
    """Return where the program of these pins lies, or will lie."""
    return paths.extras / f"{extra.name}-{digest_of(read_sources(extra.source))}" / extra.name


def ensure(paths: Paths, extra: Extra, progress: Progress) -> Path:
    """Return the program; builds it if these pins were never built here (a minute or more). Raises BuildError."""
    final = program(paths, extra)
    if final.exists():
        return final
    with machine_lock(f"localkube build of {extra.name}", progress.say):
        if not final.exists():
            _build(paths, extra, final, progress)
    return final


def _build(paths: Paths, extra: Extra, final: Path, progress: Progress) -> None:
    """Compile into a partial folder; older builds and the caches go when it stands."""
    go = find_go(paths.go / "toolchain", progress.say)
    caches, building = paths.extras / "caches", final.parent.with_suffix(".partial")
    progress.say(f"building {extra.name}: once, a minute or more")
    flags = ["-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(building / extra.name)]
    env = go_environment(caches)
    _run_go([go, "build", *flags, extra.package], extra, env)
    if extra.chart:
        module, _, folder = extra.chart.partition("@")
        source = Path(_run_go([go, "list", "-m", "-f", "{{.Dir}}", module], extra, env).strip())
        shutil.copytree(source / folder, building / "chart")
    for old in paths.extras.glob(f"{extra.name}-*"):
        if old != building:
            shutil.rmtree(old)
    building.rename(final.parent)
    subprocess.run([str(go), "clean", "-cache", "-modcache"], cwd=TOOLS_DIR, env=env, capture_output=True, check=False)
    shutil.rmtree(caches, ignore_errors=True)


def _run_go(command: Sequence[str | Path], extra: Extra, env: Mapping[str, str]) -> str:
    """Run a go command in the program's module and return what it printed."""
    done = subprocess.run(command, cwd=extra.source, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = "\n".join(done.stderr.splitlines()[-15:])
        raise BuildError(f"go {command[1]} of localkube/tools/{extra.name} failed ({done.returncode}):\n{lines}")
    return done.stdout


def main() -> None:
    """Build what only some tests need, so that none of them waits for it: `python -m localkube.extras`."""
    paths = Paths(cache_root().resolve() / "localkube")
    ensure(paths, TOXIPROXY, Progress())
    ensure_package(paths, PROMETHEUS, Progress())


if __name__ == "__main__":
    main()
