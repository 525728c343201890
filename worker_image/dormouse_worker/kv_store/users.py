"""Who has a store open, told by locks on one file: the kernel gives back those of a process that was killed."""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import weakref
from pathlib import Path

logger = logging.getLogger(__name__)

_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, process: `struct flock` of a 64-bit system


class Users:
    """One of those who share a file. Its lock hinders nobody, and lasts as long as the object or the process."""

    def __init__(self, path: Path) -> None:
        """Become one of them. Raises OSError where the file cannot be made."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_RDLCK))
        except OSError as error:  # they do not see us; we take them for granted
            logger.warning("%s cannot be locked: %s", path, error)
        weakref.finalize(self, os.close, self._fd)

    def has_others(self) -> bool:
        """Return whether another has the file open; where nobody can tell, they are there."""
        try:
            found = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
        except OSError:
            return True
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def _whole_file(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)
