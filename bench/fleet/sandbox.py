"""Namespaces of the benchmark's own: a network that is only a loopback, and processes that end with the benchmark.

Every address of the cluster, of its node and of its pods is an address of that loopback, so nothing that the benchmark
sends can leave, and a localkube beside it is neither needed nor touched although both use the same addresses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from localkube import spec
from localkube.host import search_path

POD_CIDR = "10.200.0.0/16"
NEEDED = {
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "ip": "iproute2",
    "mount": "mount",
}  # program: its Debian package
_NET = Path("/proc/self/ns/net")
_HOST_NET = "DORMOUSE_BENCH_HOST_NET"


class SandboxError(Exception):
    """The machine cannot give the benchmark namespaces of its own; the text says what to do."""


def check(*, uid: int | None = None, path: str | None = None) -> None:
    """Raise SandboxError unless namespaces can be made here; the arguments differ in tests only."""
    if (os.geteuid() if uid is None else uid) != 0:
        raise SandboxError("the benchmark makes network and process namespaces, so it must run as root (sudo)")
    for program, package in NEEDED.items():
        if shutil.which(program, path=search_path() if path is None else path) is None:
            raise SandboxError(f"`{program}` is not installed (Debian package {package})")


def enter_command(command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` inside; whatever it starts is killed when it or its parent ends."""
    return [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "--",
        "unshare",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--",
        *command,
    ]


def network_commands() -> list[list[str]]:
    """Return what makes the loopback answer for the node and for every pod."""
    return [
        ["ip", "link", "set", "lo", "up"],
        ["ip", "address", "add", f"{spec.NODE_IP}/32", "dev", "lo"],
        # A local route: who connects to an address of it without a source of its own gets that address as the source.
        ["ip", "route", "add", "local", POD_CIDR, "dev", "lo"],
    ]


def host_note() -> dict[str, str]:
    """Return the variable by which the program inside knows which network is the host's."""
    return {_HOST_NET: str(_NET.readlink())}


def bring_up_network(env: Mapping[str, str], run: Callable[[Sequence[str]], None] | None = None) -> None:
    """Make the network. Raises SandboxError unless it is our own: the host's is never changed."""
    if env.get(_HOST_NET, "") in {"", str(_NET.readlink())}:
        raise SandboxError("this is no network of the benchmark's own; run `python -m bench.fleet`")
    for command in network_commands():
        (run or _run)(command)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": search_path()})
    if done.returncode:
        raise SandboxError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
