"""Build the binaries from our pinned Go modules, once per content of their sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from localkube.errors import BuildError, HostError
from localkube.gotool import find_go
from localkube.progress import Progress, human_bytes
from localkube.spec import KUBERNETES_VERSION, Paths

PACKAGE_DIR = Path(__file__).resolve().parent
TOOLS_DIR = PACKAGE_DIR / "tools"
NEEDED_BYTES = 9 * 2**30  # module cache 3 GB, build cache 4 GB, binaries 0.7 GB, room
PROGRESS_EVERY_S = 15.0
VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


@dataclass(frozen=True, slots=True)
class Module:
    """One Go module of ours: its folder under tools/, and what to build in it (package → name of the binary)."""

    folder: str
    binaries: Mapping[str, str]

    @property
    def path(self) -> Path:
        """Where its go.mod lies."""
        return TOOLS_DIR / self.folder


MODULES = (
    Module("node", {"./pause": "pause", "./registry": "registry"}),
    Module(
        "cluster",
        {
            "./coredns": "coredns",
            "github.com/fullstorydev/grpcurl/cmd/grpcurl": "grpcurl",
            "go.etcd.io/etcd/server/v3": "etcd",
            "helm.sh/helm/v3/cmd/helm": "helm",
            "k8s.io/kubernetes/cmd/kube-apiserver": "kube-apiserver",
            "k8s.io/kubernetes/cmd/kube-controller-manager": "kube-controller-manager",
            "k8s.io/kubernetes/cmd/kube-proxy": "kube-proxy",
            "k8s.io/kubernetes/cmd/kube-scheduler": "kube-scheduler",
            "k8s.io/kubernetes/cmd/kubectl": "kubectl",
            "k8s.io/kubernetes/cmd/kubelet": "kubelet",
        },
    ),
)
_CACHES = ("build", "mod")
_DISCARDED = "discarded-"
RENAMED = {"v3": "etcd", "server": "etcd"}  # etcd's main package lies in go.etcd.io/etcd/server/v3


def link_flags(version: str = KUBERNETES_VERSION) -> str:
    """Return the linker's flags; without the version, Kubernetes would call itself v0.0.0-master."""
    major, minor, _ = version.lstrip("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "archive"}
    values["buildDate"] = "1970-01-01T00:00:00Z"  # the same sources give the same bytes
    stamps = [f"-X {package}.{name}={value}" for package in VERSION_PACKAGES for name, value in values.items()]
    return " ".join(["-s -w", *stamps])


def digest_of(files: Iterator[tuple[str, bytes]]) -> str:
    """Return a short digest over names and contents, whatever the order they come in."""
    total = hashlib.sha256()
    for name, content in sorted(files):
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()[:12]


def _read(root: Path, patterns: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    for pattern in patterns:
        for path in root.rglob(pattern):
            yield str(path.relative_to(root)), path.read_bytes()


def read_sources(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name under tools/ and content of everything that decides what a module's build gives."""
    for name, content in _read(folder, ("*.go", "go.mod", "go.sum")):
        yield f"{folder.relative_to(TOOLS_DIR)}/{name}", content


def go_digest() -> str:
    """Return the name of the build: it changes with every Go source, go.mod, go.sum and with the flags."""
    sources = (source for module in MODULES for source in read_sources(module.path))
    return digest_of(iter([*sources, ("flags", link_flags().encode())]))


def source_digest(package: Path = PACKAGE_DIR) -> str:
    """Return the name of this localkube as a whole; two clones with the same one may share a cluster.

    The stand-in GPUs are no part of a cluster: who changes them need not start another.
    """
    sources = _read(package, ("*.py", "*.go", "go.mod", "go.sum"))
    return digest_of(source for source in sources if not source[0].startswith("gpus/"))


def bin_dir(paths: Paths) -> Path:
    """Return where the binaries of these sources lie, or will lie."""
    return paths.bin_root / go_digest()


def build(paths: Paths, progress: Progress) -> Path:
    """Return the folder of binaries; builds them if these sources were never built here.

    Raises:
        BuildError: the compiler failed.
        HostError: the disk has too little room.
    """
    final = bin_dir(paths)
    if final.is_dir():
        return final
    check_free_space(paths.root, NEEDED_BYTES, what="building Kubernetes")
    go = find_go(paths.go / "toolchain", progress.say)
    building = final.with_name(final.name + ".partial")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    progress.say(f"building {sum(len(m.binaries) for m in MODULES)} binaries with {go}: once, 5-9 minutes on 2 cores")
    for module in MODULES:
        _build_module(module, _GoRun(go, paths.go, building, progress))
    building.rename(final)
    discard_go_caches(paths)
    prune_builds(paths, progress)
    progress.say(f"built {human_bytes(tree_bytes(final))} of binaries in {final}")
    return final


@dataclass(frozen=True, slots=True)
class _GoRun:
    """What every module's build shares."""

    go: Path
    caches: Path
    output: Path
    progress: Progress


def go_environment(caches: Path) -> dict[str, str]:
    """Return the environment of every go command: caches of our own, no cgo, no other toolchain."""
    ours = {
        "GOCACHE": str(caches / "build"),
        "GOMODCACHE": str(caches / "mod"),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly -modcacherw",  # modules that can be removed without asking go
        "GOWORK": "off",
        "CGO_ENABLED": "0",
    }
    return {**os.environ, **ours}


def _build_module(module: Module, run: _GoRun) -> None:
    """Compile one module; its log stays beside the caches until the build has succeeded."""
    packages = list(module.binaries)
    flags = ["-v", "-trimpath", "-buildvcs=false", "-ldflags", link_flags(), "-o", f"{run.output}/"]
    log = run.caches / f"{module.folder}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log.open("wb") as output:
        child = subprocess.Popen(
            [run.go, "build", *flags, *packages],
            cwd=module.path,
            env=go_environment(run.caches),
            stdout=output,
            stderr=output,
        )
        try:
            code = _wait(child, log, module.folder, run.progress)
        except BaseException:
            child.kill()
            child.wait()
            raise
    if code:
        lines = "\n".join(log.read_text("utf-8", "replace").splitlines()[-15:])
        raise BuildError(f"go build of localkube/tools/{module.folder} failed ({code}); log: {log}\n{lines}")
    log.unlink()
    _rename_outputs(run.output)
    run.progress.say(f"module {module.folder} built in {time.monotonic() - started:.0f} s")


def _wait(child: subprocess.Popen[bytes], log: Path, name: str, progress: Progress) -> int:
    """Wait for the compiler, with a line of progress now and then."""
    while True:
        try:
            return child.wait(PROGRESS_EVERY_S)
        except subprocess.TimeoutExpired:
            lines = log.read_text("utf-8", "replace").splitlines()
            progress.say(f"module {name}: {len(lines)} packages so far, {lines[-1] if lines else 'none yet'}")


def _rename_outputs(output: Path) -> None:
    for made, wanted in RENAMED.items():
        if (output / made).exists():
            (output / made).rename(output / wanted)


def discard_go_caches(paths: Paths) -> subprocess.Popen[bytes]:
    """Give back the 7 GB that only a build needs, in a process that nobody waits for: it takes a quarter of a minute.

    They are moved aside first, so that a build that begins meanwhile has caches of its own.
    """
    discarded = paths.go / f"{_DISCARDED}{os.getpid()}"
    discarded.mkdir(parents=True, exist_ok=True)
    for cache in _CACHES:
        if (paths.go / cache).exists():
            (paths.go / cache).rename(discarded / cache)
    return subprocess.Popen(["nice", "rm", "-rf", discarded], start_new_session=True)


def prune_caches(paths: Paths) -> None:
    """Remove what a killed build left of its caches; the next build would only have gone on from there."""
    for leftover in (*(paths.go / cache for cache in _CACHES), *paths.go.glob(f"{_DISCARDED}*")):
        shutil.rmtree(leftover, ignore_errors=True)


def prune_builds(paths: Paths, progress: Progress) -> None:
    """Remove binaries of other sources and half-written builds. Running processes keep their deleted files."""
    kept = bin_dir(paths)
    if not paths.bin_root.is_dir():
        return
    for other in paths.bin_root.iterdir():
        if other != kept:
            progress.say(f"removing the old build {other} ({human_bytes(tree_bytes(other))})")
            shutil.rmtree(other, ignore_errors=True)


def tree_bytes(root: Path) -> int:
    """Return the disk space under a folder in bytes; files that vanish meanwhile count nothing."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total += os.lstat(f"{folder}/{name}").st_blocks * 512
            except OSError:
                continue
    return total


def check_free_space(folder: Path, needed_bytes: int, *, what: str) -> None:
    """Stop with both numbers if the disk has too little room.

    Raises:
        HostError: less than `needed_bytes` are free.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise HostError(
            f"{folder} has {human_bytes(free_bytes)} free and {what} needs {human_bytes(needed_bytes)}: "
            "free some space, run `python -m localkube prune`, or set DORMOUSE_CACHE to another disk"
        )
