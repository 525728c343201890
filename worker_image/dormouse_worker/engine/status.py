"""The rank's status: kept whole, changed in one place, and sent whenever its state changes."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from dormouse_worker.common.errors import Internal, WorkerError
from dormouse_worker.common.ipc import EngineStatus, MemoryReport, State

logger = logging.getLogger(__name__)


class StatusTeller:
    """Owns the last `EngineStatus`."""

    def __init__(self, send: Callable[[EngineStatus], None]) -> None:
        self._send = send
        self.status = EngineStatus(state=State.STARTING)

    def __repr__(self) -> str:
        return f"StatusTeller({self.status.state})"

    @property
    def report(self) -> MemoryReport:
        """Return what was measured."""
        assert self.status.report is not None, "only before PROFILED is there no report"
        return self.status.report

    def note(self, **fields: object) -> None:
        """Remember what the next change shall say too."""
        self.status = msgspec.structs.replace(self.status, **fields)

    def change(self, state: State, **fields: object) -> None:
        """Enter a state and say everything that holds in it."""
        self.note(state=state, **fields)
        logger.info("state %s", state)
        self._send(self.status)

    def fail(self, error: Exception, report: MemoryReport | None) -> None:
        """Enter FAILED with the reason."""
        is_known = isinstance(error, WorkerError)
        if not is_known:
            logger.error("unexpected failure in %s", self.status.state, exc_info=error)
        self.change(
            State.FAILED,
            report=report,
            num_gpu_blocks=0,
            num_cpu_blocks=0,
            failure_reason=error.reason if isinstance(error, WorkerError) else Internal.__name__,
            failure_message=str(error) if is_known else f"{type(error).__name__}: {error}",
        )
