"""Who is killed in the campaign of faults, and the processes that belong to a pod."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

Victim = Literal[
    "front of who leaves",
    "engine of who leaves",
    "front of who comes",
    "engine of who comes",
    "front of a sleeper",
    "operator",
    "gateway",
]
Phase = Literal["Yielding", "Granting", "Held"]
VICTIMS: tuple[Victim, ...] = get_args(Victim)
PHASES: tuple[Phase, ...] = get_args(Phase)
_PROC = Path("/proc")


def fronts_of(pod_uid: str) -> Iterator[int]:
    """Yield the process of the pod's front; none while it does not run."""
    wanted = f"DORMOUSE_POD_UID={pod_uid}".encode()
    pids = {pid for pid in _pids() if wanted in _read(pid, "environ").split(b"\0")}
    for pid in pids:
        if _parent(pid) not in pids:
            yield pid


def engines_of(pod_uid: str) -> Iterator[int]:
    """Yield the engine's process of a pod; none while there is no engine."""
    for front in fronts_of(pod_uid):
        for child in _read(front, f"task/{front}/children").split()[:1]:
            yield int(child)


def kill(pid: int) -> None:
    """End a process as the kernel does that is short of memory; safe if it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def replica_of(slot: Mapping[str, Any], victim: Victim) -> str:
    """Return which member of a recorded slot a victim's words mean, "" if there is none now."""
    holders = [holding["replica"] for holding in slot.get("holders", ())]
    sleepers = [sleeper["replica"] for sleeper in slot.get("sleepers", ())]
    who = victim.partition(" of ")[2]
    found = {
        "who leaves": slot.get("leaving") or next(iter(holders), ""),
        "who comes": slot.get("next") or "",
        "a sleeper": next(iter(sleepers), ""),
    }
    return str(found.get(who, "")).partition("[")[0]


def _pids() -> Iterator[int]:
    return (int(path.name) for path in _PROC.iterdir() if path.name.isdigit())


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:  # it has ended
        return b""


def _parent(pid: int) -> int:
    """Return the parent of a process, 0 if it has ended."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0
