"""When a certificate is renewed: after two thirds of its time; an outage may take as long as the last third. Pure.

It takes up to two minutes from a renewed Secret to a process that uses it: the kubelet brings changes within one and a
half, the process looks every five seconds. The least lifetime leaves room for that.
"""

from __future__ import annotations

from datetime import datetime

LEAST_LIFETIME_S = 900


def renew_at(begin: datetime, end: datetime) -> datetime:
    """Return when a certificate of this validity is renewed."""
    return begin + (end - begin) * 2 / 3


def is_due(begin: datetime, end: datetime, now: datetime) -> bool:
    """Return whether it is time; also where it is not valid yet: then a clock was wrong."""
    return now < begin or now >= renew_at(begin, end)
