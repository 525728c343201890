"""How threads that a library starts for us are scheduled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def patient_threads() -> Iterator[None]:
    """Let no thread that starts within the block take a processor from a running one when it wakes (SCHED_BATCH).

    Made for gRPC's poller, which wakes with every message that the event loop sends, only to give the loop something to
    do: on the loop's own processor it would stop what it serves. Where another one is idle it runs there as before.
    Nothing happens where the kernel does not allow it. For the main thread, whose policy is as before afterwards.
    """
    policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, policy, param)
