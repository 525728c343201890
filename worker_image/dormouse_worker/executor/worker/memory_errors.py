"""The one place where a lack of memory, whoever noticed it, becomes InsufficientMemory."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from dormouse_worker.common.errors import InsufficientMemory
from dormouse_worker.model.device.driver import DeviceOutOfMemory

_TORCH = "OutOfMemoryError"  # of its name: who has no torch must not import it to ask
_TORCH_ON_CPU = "DefaultCPUAllocator"  # torch raises a plain RuntimeError there, and names who refused


@contextmanager
def memory_errors(what: str) -> Iterator[None]:
    """Raise InsufficientMemory, beginning with `what`, for an error inside that is a lack of memory; pass others on."""
    try:
        yield
    except Exception as error:
        if not _is_lack_of_memory(error):
            raise
        raise InsufficientMemory(f"{what}: {error}") from error


def _is_lack_of_memory(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, (DeviceOutOfMemory, MemoryError)) or type(error).__name__ == _TORCH:
        return True
    return isinstance(error, RuntimeError) and _TORCH_ON_CPU in str(error)
