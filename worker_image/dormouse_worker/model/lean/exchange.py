"""What the kernels ask of the other ranks while a pass runs, and what a stage says to the next one. All is float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_float

import torch

from dormouse_worker.model.parallel.communicator import ALONE, Communicator

LOST = 1


class Exchange:
    """Answers the kernels' `sum_up` for one pass after the other. An exception can not pass through them: it waits."""

    def __init__(self) -> None:
        self._group: Communicator = ALONE
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"Exchange({self._group!r})"

    @contextmanager
    def between(self, group: Communicator) -> Iterator[None]:
        """Ask these ranks while the block lasts; raise at its end what they let happen, such as RankLost."""
        self._group, self._error = group, None
        yield
        if self._error is not None:
            raise self._error

    def sum_up(self, address: int, count: int) -> int:
        """Add up float32 numbers over the stage, in place; return 0, or LOST."""
        numbers = torch.frombuffer((c_float * count).from_address(address), dtype=torch.float32)
        try:
            total = self._group.all_reduce(numbers)
        except BaseException as error:  # noqa: BLE001  `between` raises it
            self._error = error
            return LOST
        if total is not numbers:
            numbers.copy_(total)
        return 0
