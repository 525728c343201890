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
    """Programs of one module: a folder under tools/ with its go.mod and go.sum, and what is built there."""

    name: str
    binaries: Mapping[str, str]  # package → name of the program
    kept: str = ""  # MODULE@FOLDER: what a module brings beside programs, such as a chart; "" = nothing
    tags: str = ""  # of the build, by commas

    @property
    def source(self) -> Path:
        """Where its go.mod lies."""
        return TOOLS_DIR / self.name


TOXIPROXY = Extra("toxiproxy", {"github.com/Shopify/toxiproxy/v2/cmd/server": "toxiproxy"})
KUEUE = Extra("kueue", {"sigs.k8s.io/kueue/cmd/kueue": "manager"}, kept="sigs.k8s.io/kueue@charts/kueue")
KEDA = Extra(
    "keda",
    {"github.com/kedacore/keda/v2/cmd/operator": "keda", "github.com/kedacore/keda/v2/cmd/adapter": "keda-adapter"},
    kept="github.com/kedacore/keda/v2@config",
)
PROMETHEUS_ADAPTER = Extra(
    "prometheus-adapter",
    {"sigs.k8s.io/prometheus-adapter/cmd/adapter": "adapter"},
    kept="sigs.k8s.io/prometheus-adapter@deploy/manifests",
)
ISTIO = Extra(
    "istio",
    {"istio.io/istio/pilot/cmd/pilot-discovery": "pilot-discovery"},
    kept="istio.io/istio@manifests/charts",
    tags="disable_pgv",  # as its own releases: without validators of Envoy's messages, half of what is compiled
)


def folder(paths: Paths, extra: Extra) -> Path:
    """Return where the programs of these pins lie, or will lie; `kept` is a folder of that name among them."""
    return paths.extras / f"{extra.name}-{digest_of(read_sources(extra.source))}"


def ensure(paths: Paths, extra: Extra, progress: Progress) -> Path:
    """Return the programs' folder; builds them if these pins were never built here (a minute or more).

    Raises BuildError.
    """
    final = folder(paths, extra)
    if final.exists():
        return final
    with machine_lock(f"localkube build of {extra.name}", progress.say):
        if not final.exists():
            _build(paths, extra, final, progress)
    return final


def _build(paths: Paths, extra: Extra, final: Path, progress: Progress) -> None:
    """Compile into a partial folder; older builds and the caches go when it stands."""
    go = find_go(paths.go / "toolchain", progress.say)
    caches, building = paths.extras / "caches", final.with_suffix(".partial")
    progress.say(f"building {extra.name}: once, a minute or more")
    env = go_environment(caches)
    for package, name in extra.binaries.items():
        tags = ["-tags", extra.tags] if extra.tags else []
        flags = ["-trimpath", "-buildvcs=false", *tags, "-ldflags", "-s -w", "-o", str(building / name)]
        _run_go([go, "build", *flags, package], extra, env)
    if extra.kept:
        module, _, kept = extra.kept.partition("@")
        source = Path(_run_go([go, "list", "-m", "-f", "{{.Dir}}", module], extra, env).strip())
        shutil.copytree(source / kept, building / "kept", dirs_exist_ok=True)
    for old in paths.extras.glob(f"{extra.name}-*"):
        if old != building:
            shutil.rmtree(old)
    building.rename(final)
    subprocess.run([str(go), "clean", "-cache", "-modcache"], cwd=TOOLS_DIR, env=env, capture_output=True, check=False)
    shutil.rmtree(caches, ignore_errors=True)


def _run_go(command: Sequence[str | Path], extra: Extra, env: Mapping[str, str]) -> str:
    """Run a go command in the programs' module and return what it printed."""
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
