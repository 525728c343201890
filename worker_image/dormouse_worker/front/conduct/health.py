"""Whether a worker's engine is well: alive, not silent for too long, and able to compute on its device."""

from __future__ import annotations

import asyncio

import grpc

from dormouse_api.status import CallError
from dormouse_worker.common.commands import CheckHealth
from dormouse_worker.common.ipc import State
from dormouse_worker.common.lifecycle import COMPUTING
from dormouse_worker.front.worker import Worker


async def check_health(worker: Worker) -> float:
    """Return the seconds since the engine was last heard of. Raises CallError UNAVAILABLE, saying what is wrong.

    While it loads or carries out a command nothing is asked of it: both take as long as they take. In STANDBY there is
    none that could be ill.
    """
    if worker.board.state is State.STANDBY:
        return 0.0
    silence_s = worker.link.silence_s
    if not worker.link.is_alive or not worker.is_healthy:
        failure = worker.board.failure
        raise _unhealthy(failure.message if failure else worker.engine_overdue or "it is not running")
    if worker.board.state in COMPUTING and worker.link.running_command is None:
        await _try_device(worker, worker.engine_timeout_s - silence_s)
    return silence_s


async def _try_device(worker: Worker, timeout_s: float) -> None:
    """Have the engine compute something small.

    Bounded by what counts as stuck: a command that waits for ever would hide a stuck engine from whoever looks.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await worker.command(CheckHealth())
    except TimeoutError:
        raise _unhealthy(f"it did not answer within {timeout_s:.1f} s (--engine-timeout)") from None
    except CallError as error:
        raise _unhealthy(error.message) from error


def _unhealthy(why: str) -> CallError:
    return CallError(grpc.StatusCode.UNAVAILABLE, f"the engine is not healthy: {why}")
