"""When a deployment is woken ahead of time: repeated times of a cron, in a time zone. Pure.

An hour that a change to summer time leaves out fires when it would have been; one that comes twice fires once.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim

from dormouse_operator.model import Prewarm


def last_firing(prewarm: Iterable[Prewarm], now: datetime) -> datetime | None:
    """Return the latest time up to now at which any of them fired, None for none."""
    times = (_first(item, now + timedelta(seconds=1), is_past=True) for item in prewarm)
    return max((time for time in times if time and time <= now), default=None)


def next_firing(prewarm: Iterable[Prewarm], now: datetime) -> datetime | None:
    """Return the first time after now at which any of them fires, None for none."""
    return min((time for item in prewarm if (time := _first(item, now, is_past=False))), default=None)


def _first(item: Prewarm, begin: datetime, *, is_past: bool) -> datetime | None:
    """Return the nearest time before or after a moment; None where there is none for decades."""
    times = CronSim(item.cron, begin.astimezone(ZoneInfo(item.time_zone)), reverse=is_past)
    found: datetime | None = next(times, None)
    return found.astimezone(UTC) if found else None
