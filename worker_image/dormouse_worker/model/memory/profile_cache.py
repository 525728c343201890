"""Remembers what a profile run measured, on disk, so that the next start of the same worker only verifies it.

One file per key, written at once or not at all. A file that is damaged, unreadable or made by other software is as good
as none: nothing here stops a start.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

import msgspec

from dormouse_api import __version__
from dormouse_worker.model.memory.arithmetic import Measured, gib
from dormouse_worker.native.build import digest
from dormouse_worker.native.library import Missing, load_kernels

TOLERATED_SHARE = 0.05  # of what the worker needs, by which it may hold more at rest than is remembered: interpreters
# and the front's process are never twice of the same size

logger = logging.getLogger(__name__)


class ProfileKey(msgspec.Struct, frozen=True):
    """What a measurement depends on; another value of any field is another profile."""

    model_digest: str
    settings_digest: str
    device: str  # its name; on the CPU with the number of threads, each of which has buffers of its own
    versions: tuple[str, ...]

    def digest(self) -> str:
        """Return the hexadecimal SHA-256."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class Remembered(msgspec.Struct, frozen=True):
    """One profile and where it was taken."""

    measured: Measured
    total_bytes: int  # of the memory to share


class ProfileCache:
    """Owns a directory of remembered profiles, which several workers may share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __repr__(self) -> str:
        return f"ProfileCache({self._directory})"

    def path(self, key: ProfileKey) -> Path:
        """Return the file of this key."""
        return self._directory / f"profile-{key.digest()}.json"

    def get(self, key: ProfileKey) -> Remembered | None:
        """Return what is remembered; None if nothing is, or nothing that can be read."""
        path = self.path(key)
        try:
            remembered = msgspec.json.decode(path.read_bytes(), type=Remembered)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s is ignored: %s", path, error)
            return None
        sizes = [value for value in dataclasses.astuple(remembered.measured) if isinstance(value, int | float)]
        if min(sizes) < 0:
            logger.warning("%s is ignored: it holds a size below 0", path)
            return None
        return remembered

    def put(self, key: ProfileKey, remembered: Remembered) -> None:
        """Remember; where that is not possible, a line in the log says so."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            _write(self.path(key), msgspec.json.encode(remembered))
        except OSError as error:
            logger.warning("the profile is not remembered: %s", error)


def software_versions() -> tuple[str, ...]:
    """Return the versions of what decides how much memory a worker takes."""
    kernels = load_kernels()
    native = "" if isinstance(kernels, Missing) else f"{kernels.name} {digest()}"
    return __version__, version("torch"), version("transformers"), platform.python_version(), native


def find_difference(
    remembered: Remembered, *, weights_bytes: int, total_bytes: int, rest_bytes: int, free_bytes: int
) -> str:
    """Return why a remembered profile does not hold now, "" if it does. Weights are loaded, nothing has run yet.

    rest: what the worker holds now; free: what it could still take.
    """
    measured = remembered.measured
    if measured.weights_bytes != weights_bytes:
        return f"the weights take {weights_bytes} bytes, not {measured.weights_bytes}"
    if remembered.total_bytes != total_bytes:
        return f"there are {total_bytes} bytes to share, not {remembered.total_bytes}"
    at_rest_bytes = measured.weights_bytes + measured.non_torch_bytes
    if rest_bytes > at_rest_bytes + TOLERATED_SHARE * measured.needed_bytes:
        return f"{gib(rest_bytes)} are held at rest, not {gib(at_rest_bytes)}"
    missing_bytes = measured.needed_bytes - rest_bytes - free_bytes
    return f"{gib(missing_bytes)} of memory are missing" if missing_bytes > 0 else ""


def _write(path: Path, content: bytes) -> None:
    """Write beside the file, then put it in place: a reader sees all of it or the one before."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".profile-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
