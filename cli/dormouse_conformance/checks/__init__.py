"""The rules of the worker protocol, section by section."""

from __future__ import annotations

from dormouse_conformance.checks import (
    agreement,
    cache,
    doors,
    draining,
    errors,
    fencing,
    life,
    relay,
    resume,
    sleep,
    streams,
)
from dormouse_conformance.rules import Section

# In the order in which they are asked: first what only a worker that has just started can be asked.
SECTIONS: tuple[Section, ...] = (
    agreement.SECTION,
    life.SECTION,
    doors.SECTION,
    fencing.SECTION,
    streams.SECTION,
    errors.SECTION,
    draining.SECTION,
    sleep.SECTION,
    cache.SECTION,
    resume.SECTION,
    relay.SECTION,
)
