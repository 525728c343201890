"""Whom a worker that drains still lets in: what comes from within its pod. Owns one timer.

Gateways of others ask ours for a worker, and send the request to the HTTP API of its pod themselves. What was on its
way when the worker began to drain can go nowhere else, so for a while it is let in, and no draining ends before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dormouse_worker.common.ipc import State
from dormouse_worker.front.engine.status_board import StatusBoard
from dormouse_worker.front.requests.caller import Caller

LATE_S = 2.0  # more than gateways take to hear of the draining, and a request to come from where it was sent


class LateDoor:
    """Open for a while after `open`, as long as the worker drains. Needs a running event loop."""

    def __init__(self, board: StatusBoard, on_shut: Callable[[], None]) -> None:
        """Take who knows the state, and who is told that it shut by itself."""
        self._board = board
        self._on_shut = on_shut
        self.open_s = LATE_S
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"LateDoor({'open' if self.is_open else 'shut'})"

    @property
    def is_open(self) -> bool:
        """Return whether who comes now from within the pod is let in."""
        return self._timer is not None and self._board.state is State.DRAINING

    def lets_in(self, caller: Caller | None, *, again: bool) -> bool:
        """Return whether the caller may come in; `again`: may go on, as he was let in before."""
        if caller is None or not caller.is_in_pod:
            return False
        return self._board.state is State.DRAINING if again else self.is_open

    def open(self) -> None:
        """Let in who comes from now on, for a while."""
        self.shut()
        self._timer = asyncio.get_running_loop().call_later(self.open_s, self._expire)

    def shut(self) -> None:
        """Let nobody in any more. Safe if it is shut."""
        if self._timer:
            self._timer.cancel()
        self._timer = None

    def _expire(self) -> None:
        self._timer = None
        self._on_shut()
