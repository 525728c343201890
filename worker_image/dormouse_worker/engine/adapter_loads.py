"""When an adapter is read: between passes, for a share of their time; all the time while there are none.

A pass waits for one piece at most, and tokens come so much farther apart in the end, whatever an adapter's size and its
storage. The front asks for one adapter after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dormouse_worker.common.commands import AbortAll, AddLora, CheckHealth, Command, ListLoras, Shutdown
from dormouse_worker.common.ipc import CommandRequest, CommandResult

SHARE = 0.08  # of the time of passes, on top of it
IDLE_PIECE_S = 0.01  # with nothing else to do; messages come in between
_BESIDE = (AbortAll, CheckHealth, ListLoras, Shutdown)  # what does not mind that one is half read

Advance = Callable[[CommandRequest, float], CommandResult | None]  # (an AddLora, for so long); None = there is more


class AdapterLoads:
    """Owns the one load that is under way."""

    def __init__(self, advance: Advance, *, tell: Callable[[CommandResult], None], clock: Callable[[], float]) -> None:
        self._advance = advance
        self._tell = tell
        self._clock = clock
        self._request: CommandRequest | None = None
        self._credit_s = 0.0
        self._stopped_s = 0.0

    def __repr__(self) -> str:
        return f"AdapterLoads({self._request})"

    @property
    def is_under_way(self) -> bool:
        """Return whether there is one."""
        return self._request is not None

    def begin(self, request: CommandRequest) -> None:
        """Take a load; nothing is read yet."""
        assert isinstance(request.command, AddLora), request
        self._request = request
        self._credit_s, self._stopped_s = 0.0, self._clock()

    def make_way(self, command: Command) -> None:
        """Finish before a command that needs to know what is there."""
        if not isinstance(command, _BESIDE):
            self._go_on(math.inf)

    def turn(self, *, is_beside_passes: bool) -> None:
        """Go on, if it has time. What a piece took too much the next ones lack."""
        if not is_beside_passes:
            self._go_on(IDLE_PIECE_S)
            return
        begun_s = self._clock()
        self._credit_s += SHARE * (begun_s - self._stopped_s)
        self._stopped_s = begun_s
        if self._credit_s > 0:
            self._go_on(self._credit_s)
            self._stopped_s = self._clock()
            self._credit_s -= self._stopped_s - begun_s

    def _go_on(self, seconds: float) -> None:
        if self._request is not None and (result := self._advance(self._request, seconds)) is not None:
            self._request = None
            self._tell(result)
