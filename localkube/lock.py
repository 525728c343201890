"""One cluster per machine, for its addresses are fixed: who may change it now, and where the running one lives."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

LOCK_FILE = Path("/run/lock/dormouse-localkube.lock")
OWNER_FILE = Path("/run/dormouse-localkube.json")


@dataclass(frozen=True, slots=True)
class Owner:
    """Which localkube the running cluster came from."""

    root: str  # Paths.root of the cluster
    clone: str  # the checkout that started it
    digest: str  # of the localkube sources that started it
    boot_id: str


@contextmanager
def machine_lock(purpose: str, say: Callable[[str], None], path: Path = LOCK_FILE) -> Iterator[None]:
    """Hold the machine's lock; a second run waits and says for whom. The kernel frees it when a run is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            say(f"waiting for {handle.read().strip() or 'another run'}, which holds {path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        handle.seek(0)
        handle.truncate()
        handle.write(f"`{purpose}` of pid {os.getpid()} in {Path.cwd()}")
        handle.flush()
        yield


def read_owner(path: Path = OWNER_FILE) -> Owner | None:
    """Return whose cluster this machine has; None without one (or with a torn file)."""
    try:
        return Owner(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_owner(owner: Owner, path: Path = OWNER_FILE) -> None:
    """Write down whose cluster this is, as a whole."""
    building = path.with_suffix(".partial")
    building.write_text(json.dumps(asdict(owner)), "utf-8")
    building.rename(path)


def forget_owner(path: Path = OWNER_FILE) -> None:
    """Remove the note; safe without one."""
    path.unlink(missing_ok=True)
