"""A transport for tests of the engine's loop: what the front sends is known before."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dormouse_worker.common.ipc import EngineMessage, FrontMessage


class ListTransport:
    """Implements `Transport`: gives the prepared deliveries one by one, then says that the front is gone."""

    def __init__(self, deliveries: Iterable[list[FrontMessage]]) -> None:
        self._deliveries = list(deliveries)
        self.sent: list[EngineMessage] = []
        self.timeouts_s: list[float] = []

    @property
    def send(self) -> Callable[[EngineMessage], None]:
        """See `Transport`."""
        return self.sent.append

    def receive(self, timeout_s: float) -> list[FrontMessage] | None:
        """See `Transport`."""
        self.timeouts_s.append(timeout_s)
        return self._deliveries.pop(0) if self._deliveries else None
