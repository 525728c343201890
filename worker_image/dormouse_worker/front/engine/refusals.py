"""The errors of calls that the worker's state does not allow."""

from __future__ import annotations

import grpc

from dormouse_api.status import CallError
from dormouse_worker.common.lifecycle import why_not
from dormouse_worker.front.worker import Worker


def require(worker: Worker, call: str) -> None:
    """Raise CallError FAILED_PRECONDITION unless the worker is in a state that allows the call."""
    if why := why_not(call, worker.board.state, worker.board.engine.sleep_level):
        raise precondition(why)


def precondition(message: str) -> CallError:
    """Return the error of a call that the worker's state does not allow."""
    return CallError(grpc.StatusCode.FAILED_PRECONDITION, message)
