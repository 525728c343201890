"""One rank's torch profile: started and stopped by hand, written as a trace that chrome://tracing and Perfetto open.

It records every operation of the process and keeps them in host memory until it is stopped: profile for seconds.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from dormouse_worker.common.errors import InvalidArgument, ProfileNotWritten, WrongState

if TYPE_CHECKING:
    from torch.profiler import profile

logger = logging.getLogger(__name__)

TRACE_SUFFIX = ".trace.json.gz"


class TraceProfiler:
    """Owns the running profile, if there is one. A step that raises does not touch it."""

    def __init__(self, rank: int, device: str) -> None:
        self._rank = rank
        self._device = device
        self._running: profile | None = None
        self._path: Path | None = None  # of the running profile's trace, else of the last one's

    def __repr__(self) -> str:
        return f"TraceProfiler({'running' if self._running else 'idle'}, {self._path})"

    def start(self, directory: Path) -> None:
        """Begin to record. Raises WrongState if one runs already, InvalidArgument if the directory takes no files."""
        if self._running is not None:
            raise WrongState(f"a profile runs already, into {self._path}; stop it first")
        path = _reserve(directory, self._rank)
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device == "cuda" else [])]
        running = profile(activities=activities)
        try:
            running.start()
        except BaseException:
            path.unlink()
            raise
        self._path, self._running = path, running
        logger.info("rank %d: profile started", self._rank)

    def stop(self) -> Path:
        """Write the trace and return its path; the profile is over even if that fails.

        Raises WrongState if none runs, ProfileNotWritten if the trace cannot be written.
        """
        path = self._path
        if self._running is None or path is None:
            raise WrongState("no profile runs" + (f"; the last trace is {path}" if path else ""))
        running, self._running = self._running, None
        try:
            running.stop()
            running.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            self._path = None
            with contextlib.suppress(OSError):
                path.unlink()  # half a trace looks like one
            raise ProfileNotWritten(f"the trace {path} cannot be written: {error}") from error
        logger.info("rank %d: profile written to %s", self._rank, path)
        return path

    def end(self) -> None:
        """Write an unfinished profile; nothing happens if none runs. Raises nothing: a sleep must not depend on it."""
        if self._running is None:
            return
        try:
            self.stop()
        except ProfileNotWritten as error:
            logger.warning("rank %d: the unfinished profile is lost: %s", self._rank, error)


def _reserve(directory: Path, rank: int) -> Path:
    """Make the empty file of the next trace: an earlier one is never written over, and what is wrong is told now."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = directory / f"rank{rank}-{number:04}{TRACE_SUFFIX}"
            if not path.exists():
                path.touch(exist_ok=False)
                return path
    except OSError as error:
        raise InvalidArgument(f"directory is {str(directory)!r}, where no trace can be written: {error}") from error
    raise AssertionError("counting does not end")
