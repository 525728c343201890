"""What is done to the local cluster that no user asks for: processes killed, the API server gone. Needs its machine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from dormouse_kube.api import Resource
from localkube.processes import stop_by_file
from localkube.spec import Paths
from localkube.start import pid_file
from tools.bootstrap import cache_root
from tools.kubectl import localkube

API_SERVER_GRACE_S = 10.0
PAUSE = "pause"  # the command of the process that only holds a pod's network: it outlives its containers


def processes_of(pod: Resource, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes of a pod's containers on this machine, by their cgroups, the pause process left out."""
    uid = pod["metadata"]["uid"]
    found = []
    for folder in proc.glob("[0-9]*"):
        try:
            is_of_pod = uid in (folder / "cgroup").read_text("utf-8")
            if is_of_pod and (folder / "comm").read_text("utf-8").strip() != PAUSE:
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def kill(pods: Iterable[Resource], proc: Path = Path("/proc")) -> int:
    """SIGKILL everything that runs in the pods, as when a machine dies; return how many processes that were."""
    found = [pid for pod in pods for pid in processes_of(pod, proc)]
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # its parent's end took it along
    return len(found)


@asynccontextmanager
async def without_api_server() -> AsyncIterator[None]:
    """End the local cluster's API server, and start it again when the context ends, however it does."""
    file = pid_file(Paths(cache_root().resolve() / "localkube"), "kube-apiserver")
    if not await asyncio.to_thread(stop_by_file, file, grace_s=API_SERVER_GRACE_S):
        raise RuntimeError(f"{file} names no running API server: is the local cluster up?")
    try:
        yield
    finally:
        await asyncio.to_thread(localkube, "up")
