"""When a request is sent once more, and after how long. Pure."""

from __future__ import annotations

from collections.abc import Mapping

MAX_FAILURES = 5  # of one request that nobody told to come later
_MAX_PAUSE_S = 60.0  # less than two to the tenth
_COME_LATER = frozenset({429, 503})


def is_temporary(status: int) -> bool:
    """Return whether the same request may get another answer later."""
    return status in {408, 429} or status >= 500


def tells_to_come_later(status: int) -> bool:
    """Return whether the server has no room now, and has not tried."""
    return status in _COME_LATER


def pause_s(num_tries: int, headers: Mapping[str, str]) -> float:
    """Return how long to wait after so many tries: as the server says, else twice as long each time, up to a minute."""
    try:
        said = float(headers.get("Retry-After", ""))
    except ValueError:
        said = -1.0  # a date, or nothing
    if 0 <= said < float("inf"):
        return said
    return min(_MAX_PAUSE_S, 2.0 ** min(num_tries - 1, 10))
