"""Room on the disk: what a build needs, and what may go to make it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tools.images.settings import ImagesFailed, Settings
from tools.images.store import run_program


def make_room(folder: Path, needed_bytes: int, removals: Callable[[], None], say: Callable[[str], None]) -> None:
    """Remove what older sources left if less than that is free. Raises ImagesFailed if it is still too little."""
    if free_bytes(folder) < needed_bytes:
        say("the disk is short of space: removing the images of older sources")
        removals()
    check_free_space(folder, needed_bytes)


def check_free_space(folder: Path, needed_bytes: int) -> None:
    """Raise ImagesFailed with both numbers if the disk has not that much left."""
    free = free_bytes(folder)
    if free < needed_bytes:
        raise ImagesFailed(
            f"{folder} has {free:,} bytes free and building the images needs {needed_bytes:,} for a while: "
            "free some space, or set DORMOUSE_CACHE to another disk"
        )


def free_bytes(folder: Path) -> int:
    """Return what is left on the disk of a folder."""
    return shutil.disk_usage(folder).free


def prune_localkube(settings: Settings) -> None:
    """Let localkube forget the images of older sources. Raises ImagesFailed if it cannot."""
    run_program([sys.executable, "-m", "localkube", "prune"], extra={"PYTHONPATH": str(settings.source)})
