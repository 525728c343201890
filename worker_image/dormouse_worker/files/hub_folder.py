"""A folder that a hub's files come into: once, whole, by one process at a time, continued where they broke off."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from dormouse_worker.common.errors import StorageFull
from dormouse_worker.files.hub import HubFile, Remedies, Snapshot, partial_of

_COMPLETE = ".dormouse-complete.json"
_LOCK = ".dormouse-lock"
_GIB = 2**30


class Source(Protocol):
    """Where files come from."""

    def look_up(self) -> Snapshot:
        """Return what there is. Raises WorkerError."""
        ...

    def fetch(self, commit: str, file: HubFile, target: Path) -> None:
        """Put one file at `target`, whole or not at all. Raises WorkerError."""
        ...


@contextmanager
def turn(directory: Path) -> Iterator[None]:
    """Wait until no other process downloads into the directory."""
    with (directory / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_mark(directory: Path) -> dict[str, Any] | None:
    """Return what was written when a download ended well, if all that it brought is still there."""
    try:
        mark: dict[str, Any] = json.loads((directory / _COMPLETE).read_text())
        files: dict[str, int] = mark["files"]
    except (OSError, ValueError, KeyError):
        return None
    return mark if all(_is_there(directory, name, num_bytes) for name, num_bytes in files.items()) else None


def write_mark(directory: Path, commit: str, files: Sequence[HubFile], **more: str) -> None:
    """Write down that everything is there; in one step."""
    mark = {"commit": commit, "files": {file.name: file.num_bytes for file in files}, **more}
    fresh = directory / f"{_COMPLETE}.new"
    fresh.write_text(json.dumps(mark))
    fresh.rename(directory / _COMPLETE)


def fetch_missing(
    source: Source, commit: str, files: Sequence[HubFile], directory: Path, *, say: Callable[[str], object]
) -> None:
    """Fetch what is missing, one after another. Raises WorkerError."""
    missing = _missing(directory, files)
    total, done = sum(file.num_bytes for file in files), sum(file.num_bytes for file in files if file not in missing)
    for file in missing:
        say(f"{done / _GIB:.2f} of {total / _GIB:.2f} GiB are here; {file.name} comes")
        source.fetch(commit, file, directory / file.name)
        done += file.num_bytes


def num_bytes_here(directory: Path, files: Sequence[HubFile]) -> int:
    """Return how much of the files is there, partial ones included. Safe while somebody fetches them."""
    return sum(_num_bytes_of(directory / file.name) for file in files)


def check_room(directory: Path, files: Sequence[HubFile], remedies: Remedies) -> None:
    """Raise StorageFull if there is no room for all that is missing."""
    here = sum(file.stat().st_size for file in directory.glob(".*.partial"))
    needed, free = sum(file.num_bytes for file in _missing(directory, files)) - here, shutil.disk_usage(directory).free
    if needed > free:
        raise StorageFull(
            f"the cache volume has {free / _GIB:.2f} GiB free, {needed / _GIB:.2f} GiB are missing; {remedies.room}"
        )


def _missing(directory: Path, files: Sequence[HubFile]) -> list[HubFile]:
    return [file for file in files if not _is_there(directory, file.name, file.num_bytes)]


def _is_there(directory: Path, name: str, num_bytes: int) -> bool:
    path = directory / name
    return path.is_file() and path.stat().st_size == num_bytes


def _num_bytes_of(path: Path) -> int:
    """Return the size of a file, or of what has come of it: one becomes the other at any moment."""
    for each in (path, partial_of(path), path):
        with suppress(FileNotFoundError):
            return each.stat().st_size
    return 0
