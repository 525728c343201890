"""Who is killed in the campaign of faults, and the processes that belong to a pod."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

Victim = Literal[
    "front of who leaves",
    "engine of who leaves",
    "worker of who leaves",
    "front of who comes",
    "engine of who comes",
    "worker of who comes",
    "front of a sleeper",
    "operator",
    "gateway",
]
Phase = Literal["Yielding", "Granting", "Held"]
VICTIMS: tuple[Victim, ...] = get_args(Victim)
PHASES: tuple[Phase, ...] = get_args(Phase)
_NOBODY: frozenset[tuple[Phase, Victim]] = frozenset(  # whom a phase does not know
    {
        ("Granting", "front of who leaves"),
        ("Granting", "engine of who leaves"),
        ("Granting", "worker of who leaves"),
        ("Held", "front of who comes"),
        ("Held", "engine of who comes"),
        ("Held", "worker of who comes"),
    }
)
CASES: tuple[tuple[Phase, Victim], ...] = tuple(
    (phase, victim) for phase in PHASES for victim in VICTIMS if (phase, victim) not in _NOBODY
)
_PROC = Path("/proc")


class Fronts:
    """Finds processes of pods. It keeps those it found: a phase of a slot is over before all could be read anew."""

    def __init__(self) -> None:
        """Know none."""
        self._known: dict[str, int] = {}

    def __repr__(self) -> str:
        """Show how many it knows."""
        return f"Fronts({len(self._known)} known)"

    def refresh(self, pod_uids: Iterable[str]) -> None:
        """Look for the fronts of pods that have none that is known and runs."""
        for uid in pod_uids:
            if not self.front_of(uid):
                self._known.update((uid, pid) for pid in _fronts_of(uid))

    def front_of(self, pod_uid: str) -> list[int]:
        """Return the process of the pod's front; none while it is not known, or does not run."""
        pid = self._known.get(pod_uid)
        return [pid] if pid and _is_of(pid, pod_uid) else []

    def engine_of(self, pod_uid: str) -> list[int]:
        """Return the engine's process of a pod; none while there is no engine."""
        return [int(child) for pid in self.front_of(pod_uid) for child in _children(pid)[:1]]

    def pids_of(self, victim: Victim, pod_uid: str) -> list[int]:
        """Return what of a pod a victim's words mean; nothing of a worker that has no engine."""
        part, engine = victim.partition(" ")[0], self.engine_of(pod_uid)
        parts = {
            "front": self.front_of(pod_uid),
            "engine": engine,
            "worker": engine and [*self.front_of(pod_uid), *engine],
        }
        return parts[part]


def _fronts_of(pod_uid: str) -> Iterator[int]:
    pids = {pid for pid in _pids() if _is_of(pid, pod_uid)}
    return (pid for pid in pids if _parent(pid) not in pids)


def _is_of(pid: int, pod_uid: str) -> bool:
    return f"DORMOUSE_POD_UID={pod_uid}".encode() in _read(pid, "environ").split(b"\0")


def _children(pid: int) -> list[bytes]:
    return _read(pid, f"task/{pid}/children").split()


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
