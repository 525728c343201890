"""Notices that mounted files changed. Polls: inotify says nothing useful of the links by which Secrets are swapped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

_LOG = logging.getLogger(__name__)

Fingerprint = tuple[tuple[str, int, int], ...]


def fingerprint(paths: tuple[Path, ...]) -> Fingerprint:
    """Return what tells two contents apart, of files and of the files in directories. What is missing is left out."""
    files = sorted(file for path in paths for file in ([path, *path.iterdir()] if path.is_dir() else [path]))
    return tuple((str(file), *_stat(file)) for file in files)


async def watch_files(paths: tuple[Path, ...], reload: Callable[[], None], *, every_s: float) -> None:
    """Call `reload` after each change until it raises no OSError, for ever. What is of no use is logged once."""
    used: Fingerprint | None = fingerprint(paths)
    complained = used
    while True:
        await asyncio.sleep(every_s)
        seen: Fingerprint | None = None
        try:
            seen = fingerprint(paths)
            if seen != used:
                reload()
                used = seen
        except OSError:
            if seen != complained:
                _LOG.exception("%s: tried again every %g s", ", ".join(map(str, paths)), every_s)
            complained = seen


def _stat(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)
