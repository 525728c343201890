"""What the kernels ask of the other ranks while a pass runs. All is float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_float

from dormouse_worker.model.parallel.communicator import ALONE, Communicator


class Exchange:
    """Answers the kernels' `sum_up` for one pass after the other. An exception cannot pass through them: it waits."""

    def __init__(self) -> None:
        self._group: Communicator = ALONE
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"Exchange({self._group!r})"

    @contextmanager
    def between(self, group: Communicator) -> Iterator[None]:
        """Ask these ranks while the block lasts; raise at its end what they let happen, such as RankLost."""
        self._group = group
        try:
            yield
        finally:
            error, self._error, self._group = self._error, None, ALONE
            if error is not None:
                raise error

    def sum_up(self, address: int, count: int) -> bool:
        """Add up float32 numbers over the stage, in place; return whether all came.

        False is what ctypes makes of an exception, too.
        """
        try:
            import torch

            numbers = torch.frombuffer((c_float * count).from_address(address), dtype=torch.float32)
            total = self._group.all_reduce(numbers)
            if total is not numbers:
                numbers.copy_(total)
        except BaseException as error:  # noqa: BLE001  `between` raises it
            self._error = error
            return False
        return True
