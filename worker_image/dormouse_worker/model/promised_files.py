"""Files that another process laid down: a plain file of the promised size, or nothing is read of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class AnotherFile(OSError):
    """What stands there is no plain file of the promised size."""

    def __init__(self, *, found_bytes: int, num_bytes: int) -> None:
        super().__init__(f"{found_bytes} bytes are there, {num_bytes} were promised")
        self.found_bytes = found_bytes


def read_promised(path: Path, num_bytes: int) -> bytes:
    """Return the contents. Raises OSError; no link is followed, and nothing is waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != num_bytes:
            raise AnotherFile(found_bytes=found.st_size, num_bytes=num_bytes)
        return file.read(num_bytes)
