"""One cluster per machine, for its addresses are fixed: who may change it now, and where the running one lives."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.bootstrap import held

LOCK_FILE = Path("/run/lock/dormouse-localkube.lock")
OWNER_FILE = Path("/run/dormouse-localkube.json")


@dataclass(frozen=True, slots=True)
class Owner:
    """Which localkube the running cluster came from."""

    root: str  # Paths.root of the cluster
    clone: str  # the checkout that started it
    digest: str  # of the localkube sources that started it
    boot_id: str


def machine_lock(purpose: str, say: Callable[[str], None], path: Path = LOCK_FILE) -> AbstractContextManager[None]:
    """Hold the machine's lock; a second run waits and says for whom. The kernel frees it when a run is killed."""
    return held(path, f"`{purpose}` of pid {os.getpid()} in {Path.cwd()}", say)


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
