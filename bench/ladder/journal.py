"""What the stand-in workers do, as lines of a file that the benchmark reads. Times are those of CLOCK_MONOTONIC."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import msgspec

What = Literal["ready", "asleep", "waking", "woken", "request"]


class Entry(msgspec.Struct, frozen=True):
    """One thing that happened at a worker."""

    at_s: float
    what: What
    deployment: str
    request_id: str = ""  # of a request that came
    level: int = 0  # how deep it sleeps now, or slept until it woke


class JournalWriter:
    """Appends; who reads sees whole lines."""

    def __init__(self, path: Path) -> None:
        """Begin a new file."""
        self._path = path
        path.write_bytes(b"")

    def __repr__(self) -> str:
        return f"JournalWriter({self._path})"

    def write(self, what: What, deployment: str, *, request_id: str = "", level: int = 0) -> None:
        """Note that this happens now."""
        entry = Entry(time.monotonic(), what, deployment, request_id, level)
        with self._path.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(entry) + b"\n")


class Journal:
    """Reads what was appended, from where it stopped last."""

    def __init__(self, path: Path) -> None:
        """Take the file; it must exist when it is read."""
        self._path = path
        self._offset = 0
        self.entries: list[Entry] = []

    def __repr__(self) -> str:
        return f"Journal({len(self.entries)} entries)"

    def read(self) -> list[Entry]:
        """Take up what is new; return all entries so far."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._offset += len(whole) + 1
            self.entries += [msgspec.json.decode(line, type=Entry) for line in whole.split(b"\n")]
        return self.entries

    def of(self, deployment: str, *, since_s: float = 0.0) -> list[Entry]:
        """Return what happened at a deployment's workers from this moment on, in order."""
        return [entry for entry in self.read() if entry.deployment == deployment and entry.at_s >= since_s]
