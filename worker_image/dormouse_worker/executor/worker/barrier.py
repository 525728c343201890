"""A command that all ranks of a group carry out, or none: they meet before anything that takes them all."""

from __future__ import annotations

import contextlib
from types import TracebackType

from dormouse_worker.common.errors import PeerFailed, RankLost
from dormouse_worker.model.parallel.communicator import Communicator


class RankBarrier:
    """Owns whether this rank has come. Leaving the block with an error before that tells the others not to go on."""

    def __init__(self, communicator: Communicator, command: str) -> None:
        self._communicator, self._command = communicator, command
        self._has_come = False

    def __repr__(self) -> str:
        return f"RankBarrier({self._command}, {'met' if self._has_come else 'not yet'})"

    def __enter__(self) -> RankBarrier:
        """Return itself."""
        return self

    def meet(self) -> None:
        """Return when all ranks have come so far. Raises PeerFailed naming those that could not, RankLost."""
        self._has_come = True
        refusing = self._communicator.agree(is_ready=True)
        if refusing:
            ranks = ", ".join(map(str, refusing))
            raise PeerFailed(f"{self._command} is taken back here: rank {ranks} could not do it, and says why")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell the others of an error of this rank alone."""
        if error is not None and not self._has_come:
            with contextlib.suppress(RankLost):  # the error at hand tells more
                self._communicator.agree(is_ready=False)
