"""The engine process's loop: messages in, one step, messages out. Never waits for the socket while it works."""

from __future__ import annotations

from typing import Protocol

from dormouse_worker.common.ipc import EngineMessage, FrontMessage, Heartbeat
from dormouse_worker.engine.controller import MAX_FAILURES_IN_A_ROW, SAVE_BEFORE_END_S, Controller

HEARTBEAT_S = 1.0  # how long an idle engine waits for messages, hence the period of its heartbeats


class Transport(Protocol):
    """A connection to the front."""

    def receive(self, timeout_s: float) -> list[FrontMessage] | None:
        """Return what arrived within the time, possibly nothing; None when the front is gone."""

    def send(self, message: EngineMessage) -> None:
        """Write one frame; may block. Dropped silently when the front is gone: `receive` tells."""


class EngineBroken(Exception):
    """This process cannot compute any more; whoever was in its last batch has been told."""


class EngineLoop:
    """Runs until the front is gone or asked for the end."""

    def __init__(self, transport: Transport, controller: Controller) -> None:
        self._transport = transport
        self._controller = controller

    def run(self) -> None:
        """Load, profile, serve. Raises EngineBroken when the device does not compute any more, GroupBroken."""
        self._controller.start()
        while self.turn():
            pass
        self._controller.save_blocks(SAVE_BEFORE_END_S)

    def turn(self) -> bool:
        """Go round once; False when it was the last time."""
        busy = self._controller.has_work
        messages = self._transport.receive(0.0 if busy else HEARTBEAT_S)
        if messages is None:
            return False
        for message in messages:
            self._controller.handle(message)
        if self._controller.is_shut_down:
            return False
        self._controller.check_group()
        if not messages and not busy:
            self._rest()
        self._controller.step()
        if self._controller.is_broken:
            raise EngineBroken(f"{MAX_FAILURES_IN_A_ROW} forward passes in a row failed; a new process has to go on")
        return True

    def _rest(self) -> None:
        self._controller.rest()
        self._transport.send(Heartbeat())
