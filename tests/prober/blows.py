"""What is done to the local cluster that no user asks for: processes killed, the API server gone. Needs its machine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from dormouse_kube.api import Resource
from localkube.lock import machine_lock
from localkube.processes import is_alive, read_pid_file, start, stop_by_file
from localkube.spec import Paths
from localkube.start import log_file, pid_file
from tools.bootstrap import cache_root

GRACE_S = 10.0
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
    """End the local cluster's API server, and start it as it was when the context ends, however it does.

    Meanwhile nobody may mend the cluster: `localkube up` waits for the lock.
    """
    paths = Paths(cache_root().resolve() / "localkube")
    with machine_lock("a minute without API server", print):
        async with without(paths, "kube-apiserver"):
            yield


@asynccontextmanager
async def without(paths: Paths, component: str) -> AsyncIterator[None]:
    """End a component of a local cluster, and start it as it was when the context ends.

    Raises RuntimeError if none runs, or if it ends at once.
    """
    file = pid_file(paths, component)
    identity = read_pid_file(file)
    if identity is None or not is_alive(identity):
        raise RuntimeError(f"{file} names no running {component}: is the local cluster up?")
    argv, env = how_it_was_started(identity.pid)
    await asyncio.to_thread(stop_by_file, file, grace_s=GRACE_S)
    try:
        yield
    finally:
        if start(argv, log=log_file(paths, component), pid_file=file, env=env) is None:
            raise RuntimeError(f"{component} ended at once; see {log_file(paths, component)}")


def how_it_was_started(pid: int, proc: Path = Path("/proc")) -> tuple[list[str], dict[str, str]]:
    """Return a process's arguments and its environment."""
    arguments, variables = ((proc / str(pid) / name).read_text("utf-8") for name in ("cmdline", "environ"))
    pairs = (variable.partition("=") for variable in variables.split("\0") if variable)
    return arguments.rstrip("\0").split("\0"), {name: value for name, _, value in pairs}
