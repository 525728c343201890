"""The errors of calls that the worker's state does not allow."""

from __future__ import annotations

import grpc

from dormouse_api.status import CallError
from dormouse_worker.common.commands import Sleep
from dormouse_worker.common.lifecycle import why_not
from dormouse_worker.front.engine.claims import LEVELS_CLAIMED
from dormouse_worker.front.worker import Worker


def require(worker: Worker, call: str) -> None:
    """Raise CallError FAILED_PRECONDITION unless the worker is in a state that allows the call."""
    if why := why_not(call, worker.board.state, worker.board.engine.sleep_level):
        raise precondition(why)


def require_level(worker: Worker, command: Sleep | None) -> None:
    """Raise CallError FAILED_PRECONDITION for a level of the engine's that it does not claim; None is STANDBY."""
    if command is not None and LEVELS_CLAIMED[command.level] not in worker.served.edition.identity.capabilities:
        runtime = worker.served.edition.engine.runtime
        raise precondition(f"level is {command.level}; with runtime {runtime} only 3 is there, which ends the engine")


def precondition(message: str) -> CallError:
    """Return the error of a call that the worker's state does not allow."""
    return CallError(grpc.StatusCode.FAILED_PRECONDITION, message)
