"""How the worker's processes end each other: with their parent, and on a device that is ill."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

from dormouse_worker.common.exit_codes import EXIT_GPU_UNHEALTHY

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the thread that started us ends.

    A parent that died before this line is noticed by its closed socket.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_unhealthy(why: object) -> NoReturn:
    """End this process at once, from any thread; the last line is what the front repeats.

    Nothing is tidied up: on a device that is gone every call may hang.
    """
    os.write(sys.stderr.fileno(), f"{why}\n".encode())
    os._exit(EXIT_GPU_UNHEALTHY)
