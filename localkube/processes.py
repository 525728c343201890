"""Start, find and end our own processes. A process is ours only if pid and start time are those of its pid file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Identity:
    """Names one process for ever: the kernel reuses pids, but not with the same start time."""

    pid: int
    start_ticks: int  # clock ticks after boot, field 22 of /proc/PID/stat
    boot_id: str  # start times of another boot mean nothing


def parse_stat(text: str) -> tuple[str, int]:
    """Return (state letter, start ticks) of a /proc/PID/stat line; the command in it may hold spaces and brackets."""
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def boot_id() -> str:
    """Return the kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def identify(pid: int, *, proc: Path = Path("/proc")) -> Identity | None:
    """Return who runs under this pid; None for nobody and for a zombie, which has ended already."""
    try:
        state, start_ticks = parse_stat((proc / str(pid) / "stat").read_text("utf-8", "replace"))
    except (OSError, ValueError, IndexError):
        return None
    return None if state in "ZX" else Identity(pid, start_ticks, boot_id())


def read_pid_file(path: Path) -> Identity | None:
    """Return the identity that a pid file names; None if it is absent or torn."""
    try:
        fields = json.loads(path.read_text("utf-8"))
        return Identity(int(fields["pid"]), int(fields["start_ticks"]), str(fields["boot_id"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_pid_file(path: Path, identity: Identity) -> None:
    """Write a pid file as a whole, so that a reader never sees half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    building = path.with_suffix(".partial")
    building.write_text(json.dumps(asdict(identity)), "utf-8")
    building.rename(path)


def is_alive(identity: Identity | None) -> bool:
    """Return whether exactly this process still runs."""
    return identity is not None and identify(identity.pid) == identity


def start(argv: Sequence[str], *, log: Path, pid_file: Path, env: Mapping[str, str]) -> Identity | None:
    """Start a daemon in a session of its own, with its output in `log`; None if it ended at once."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=dict(env), cwd="/"
        )
    identity = identify(child.pid)
    child.returncode = 0  # it outlives us; without this, Popen warns when it is collected
    if identity is not None:
        write_pid_file(pid_file, identity)
    return identity


def _signal(identity: Identity, number: signal.Signals) -> None:
    if not is_alive(identity):
        return
    try:
        os.kill(identity.pid, number)
    except ProcessLookupError:
        return


def wait_gone(identities: Sequence[Identity], timeout_s: float, *, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Wait until none of them runs; tell whether that happened in time."""
    deadline_s = time.monotonic() + timeout_s
    while any(is_alive(identity) for identity in identities):
        if time.monotonic() > deadline_s:
            return False
        _reap()
        sleep(POLL_S)
    return True


def _reap() -> None:
    """Collect own children that ended, which else would stay zombies as long as we run."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def stop(identities: Sequence[Identity], *, grace_s: float) -> None:
    """End processes: politely first, by force after `grace_s`."""
    for identity in identities:
        _signal(identity, signal.SIGTERM)
    if wait_gone(identities, grace_s):
        return
    for identity in identities:
        _signal(identity, signal.SIGKILL)
    wait_gone(identities, grace_s)


def stop_by_file(pid_file: Path, *, grace_s: float) -> bool:
    """End the process of a pid file if it is still that one, and remove the file; tell whether one ran."""
    identity = read_pid_file(pid_file)
    running = identity is not None and is_alive(identity)
    if identity is not None:
        stop([identity], grace_s=grace_s)
    pid_file.unlink(missing_ok=True)
    return running


def tail(log: Path, num_lines: int = 15) -> str:
    """Return a log's last lines; safe when there is none."""
    try:
        with log.open("rb") as handle:
            handle.seek(max(0, log.stat().st_size - 20_000))
            lines = handle.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(f"  | {line}" for line in lines[-num_lines:]) or "  | (empty log)"
