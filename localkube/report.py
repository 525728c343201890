"""What `status` says: components, versions, paths."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from localkube import build, host, lock, spec
from localkube.cluster import Cluster
from localkube.errors import HostError
from localkube.start import State

PINNED = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "coredns": "github.com/coredns/coredns",
    "helm": "helm.sh/helm/v3",
    "grpcurl": "github.com/fullstorydev/grpcurl",
    "registry": "github.com/distribution/distribution/v3",
}


@dataclass(frozen=True, slots=True)
class Report:
    """All that `status` prints."""

    is_healthy: bool
    owner: str
    states: tuple[State, ...]
    versions: dict[str, str]
    places: dict[str, str]


def parse_go_mod(text: str) -> dict[str, str]:
    """Return module → version of all requirements of a go.mod."""
    found = re.findall(r"^\s*(?:require\s+)?([^\s()]+)\s+(v\d\S*)(?:\s*//.*)?$", text, re.MULTILINE)
    return dict(found)


def parse_version(text: str) -> str:
    """Return the first version number in a program's answer to --version; `unknown` without one.

    >>> parse_version("runc version 1.1.5+ds1")
    '1.1.5+ds1'
    """
    found = re.search(r"\bv?(\d+\.\d+(?:\.\d+)?[^\s,]*)", text)
    return found[1] if found else "unknown"


def _installed_version(name: str) -> str:
    try:
        done = subprocess.run([host.program(name), "--version"], capture_output=True, text=True, check=False)
    except HostError:
        return "not installed"
    return parse_version(done.stdout)


def versions() -> dict[str, str]:
    """Return the version of everything that runs."""
    pins: dict[str, str] = {}
    for module in build.MODULES:
        pins |= parse_go_mod((module.path / "go.mod").read_text("utf-8"))
    pinned = {name: pins[module] for name, module in PINNED.items()}
    installed = {name: _installed_version(name) for name in ("containerd", "runc")}
    return {"kubernetes": spec.KUBERNETES_VERSION, **pinned, **installed}


def gather(cluster: Cluster, *, is_healthy: bool) -> Report:
    """Look at everything; changes nothing."""
    owner = lock.read_owner()
    paths = cluster.paths
    places = {
        "kubeconfig": paths.kubeconfig,
        "binaries": build.bin_dir(paths),
        "logs": paths.logs,
        "audit log": paths.audit_log,
        "volumes": paths.volumes,
        "containerd": paths.containerd_socket,
    }
    return Report(
        is_healthy=is_healthy,
        owner="nobody" if owner is None else f"{owner.clone} (localkube {owner.digest})",
        states=tuple(cluster.states()),
        versions=versions(),
        places={name: str(place) for name, place in places.items()} | {"registry": spec.REGISTRY},
    )


def render(report: Report) -> str:
    """Return the report as lines of two or three columns."""
    components = [
        f"  {s.name:24} {s.text:10} {'' if s.pid is None else f'pid {s.pid}'}".rstrip() for s in report.states
    ]
    lines = [
        f"localkube is {'healthy' if report.is_healthy else 'NOT healthy'}; started by {report.owner}",
        *components,
    ]
    for title, values in (("versions", report.versions), ("paths", report.places)):
        lines += [f"{title}:", *(f"  {name:24} {value}" for name, value in values.items())]
    return "\n".join(lines)
