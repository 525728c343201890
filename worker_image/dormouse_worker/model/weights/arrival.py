"""Weights on their way: one filling of memory, and how far it is. Knows neither files nor devices.

    bytes    |###########################|                                  |
             0             told so far --^                  the last byte --^

Who computes waits for the bytes of a layer at a time, so that the first layers compute while the last ones are copied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

Tell = Callable[[int], None]  # called by one thread at a time, with ends that grow; does not wait for anybody


class _Stopped(Exception):
    """Nobody wants the bytes any more."""


class Arrival:
    """Owns the thread that fills, if there is one, and what is known of its work."""

    def __init__(self, fill: Callable[[Tell], None]) -> None:
        """`fill(tell)` brings all bytes, and calls `tell(end)` on any thread when all before a later end are there."""
        self._fill = fill
        self._end_bytes = 0
        self._is_over = False
        self._is_unwanted = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        state = "failed" if self._error else "over" if self._is_over else "under way"
        return f"Arrival({self._end_bytes} bytes, {state})"

    def start(self) -> None:
        """Fill on a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="arrival")
        self._thread.start()

    def wait_for(self, end_bytes: int) -> None:
        """Return when the bytes before this one are there. Raises what ended the filling too early."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._end_bytes >= end_bytes)
            if self._error is not None:
                raise self._error

    def finish(self) -> None:
        """Return when all bytes are there. Raises what ended the filling too early; no thread is left either way."""
        self._join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Let the filling end as soon as it tells something, and wait for that; whatever it raises is nobody's."""
        self._is_unwanted = True
        self._join()

    def _join(self) -> None:
        assert self._thread is not None, "it was started"
        self._thread.join()

    def _run(self) -> None:
        try:
            self._fill(self._tell)
        except BaseException as error:  # noqa: BLE001  whoever waits raises it
            self._error = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _tell(self, end_bytes: int) -> None:
        if self._is_unwanted:
            raise _Stopped
        with self._changed:
            self._end_bytes = end_bytes
            self._changed.notify_all()
