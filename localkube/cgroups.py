"""The control group that all pods live under, in every hierarchy this kernel has (version 1, 2 or both)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from localkube import spec

MOUNTED_AT = Path("/sys/fs/cgroup")
V2_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")
SPACE_S = 0.05


def hierarchies(mounted_at: Path = MOUNTED_AT) -> list[Path]:
    """Return the roots of all hierarchies: the one of version 2, or each controller's of version 1."""
    if (mounted_at / "cgroup.controllers").exists():
        return [mounted_at]
    return sorted(path for path in mounted_at.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink())


def ensure(mounted_at: Path = MOUNTED_AT, *, below: str = "") -> None:
    """Make our group in every hierarchy, or a group below it."""
    for root in hierarchies(mounted_at):
        parent = root / spec.CGROUP if below else root
        if (root / "cgroup.controllers").exists() and root == mounted_at:
            _enable_v2(parent)
        group = parent / (below or spec.CGROUP)
        group.mkdir(exist_ok=True)
        _fill_cpuset(parent, group)


def _enable_v2(root: Path) -> None:
    offered = (root / "cgroup.controllers").read_text("ascii").split()
    wanted = [f"+{name}" for name in V2_CONTROLLERS if name in offered]
    (root / "cgroup.subtree_control").write_text(" ".join(wanted), "ascii")


def _fill_cpuset(root: Path, group: Path) -> None:
    """A new group of version 1 has no CPU and no memory node until it is told which."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (root / name).exists() and not (group / name).read_text("ascii").strip():
            (group / name).write_text((root / name).read_text("ascii"), "ascii")


def groups(mounted_at: Path = MOUNTED_AT) -> list[Path]:
    """Return our groups in all hierarchies, children before parents."""
    found: list[Path] = []
    for root in hierarchies(mounted_at) if mounted_at.is_dir() else []:
        for folder, _, _ in os.walk(root / spec.CGROUP, topdown=False):
            found.append(Path(folder))
    return found


def _members(groups_: list[Path]) -> set[int]:
    pids: set[int] = set()
    for group in groups_:
        try:
            pids.update(int(pid) for pid in (group / "cgroup.procs").read_text("ascii").split())
        except OSError:
            continue
    return pids - {0}


def kill_members(timeout_s: float = 10.0) -> int:
    """End every process in our groups by force (only containers are there); return how many there were."""
    killed: set[int] = set()
    deadline_s = time.monotonic() + timeout_s
    while (pids := _members(groups())) and time.monotonic() < deadline_s:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        killed |= pids
        time.sleep(SPACE_S)
    return len(killed)


def remove(timeout_s: float = 5.0) -> int:
    """Remove our groups; return how many are left (0 when all is well). A group empties a moment after its last end."""
    deadline_s = time.monotonic() + timeout_s
    while left := groups():
        for group in left:
            try:
                group.rmdir()
            except OSError:
                continue
        if time.monotonic() > deadline_s:
            break
        time.sleep(SPACE_S)
    return len(groups())
