"""What goes wrong with a rank: a refusal passes, anything else leads to FAILED, and a group that broke stays broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dormouse_worker.common.errors import GroupBroken, WorkerError
from dormouse_worker.engine.executor import Executor
from dormouse_worker.engine.status import StatusTeller


class Failures:
    """Owns what is known of a broken group, and the way to FAILED."""

    def __init__(self, executor: Executor, teller: StatusTeller, let_go: Callable[[], None]) -> None:
        """`let_go` drops the engine: requests that were running cannot be there in any state that leads to FAILED."""
        self._executor = executor
        self._teller = teller
        self._let_go = let_go
        self._broken: GroupBroken | None = None

    def __repr__(self) -> str:
        return f"Failures({self._broken!r})"

    def check_group(self) -> None:
        """Raise GroupBroken, naming the rank, if a group of ranks cannot go on: whoever asked has been told."""
        if self._broken is not None:
            raise self._broken
        self._executor.check_ranks()

    @contextmanager
    def passing_refusals(self, *fatal: type[WorkerError]) -> Iterator[None]:
        """Pass on what is raised; what is no refusal, or one of these, leads to FAILED."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, WorkerError) or isinstance(error, fatal):
                self.fail(error)
            raise

    def fail(self, error: Exception) -> None:
        """Enter FAILED."""
        self._let_go()
        self.note(error)
        self._teller.note(ranks=self._executor.get_rank_statuses())
        self._teller.fail(error, self._executor.get_memory_report())

    def note(self, error: Exception) -> None:
        """Remember a group that broke."""
        if isinstance(error, GroupBroken):
            self._broken = error
