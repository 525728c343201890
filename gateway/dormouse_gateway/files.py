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


async def watch_files(paths: tuple[Path, ...], on_change: Callable[[], None], *, every_s: float) -> None:
    """Call `on_change` after each change, for ever. What it raises is logged: the next change is another chance."""
    known = fingerprint(paths)
    while True:
        await asyncio.sleep(every_s)
        try:
            seen = fingerprint(paths)
            if seen != known:
                known = seen
                on_change()
        except OSError:
            _LOG.exception("could not look at %s", ", ".join(map(str, paths)))


def _stat(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)
