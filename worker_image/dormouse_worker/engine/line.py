"""Whose turn it is among those that wait, where some may be overtaken. Pure."""

from __future__ import annotations

from collections.abc import Container, Sequence

from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.request import Request

MAX_OVERTAKES = 64  # by later requests, while one waits for a slot of its adapter


def head(waiting: Sequence[Request], adapters: AdapterSlots, passed: Container[str] = ()) -> Request | None:
    """Return who is admitted next: the first that is not held or passed, and finds a slot; None = nobody may be.

    Who finds no slot is overtaken so often at most; then all behind wait, until one of the slots is free.
    """
    for request in waiting:
        if request.is_held or request.request_id in passed:
            continue
        if adapters.has_room(request.adapter):
            return request
        if request.num_overtakes >= MAX_OVERTAKES:
            return None
    return None


def leave(waiting: list[Request], request: Request) -> None:
    """Take a request out of the line, and count for those before it that they were overtaken."""
    place = waiting.index(request)
    for other in waiting[:place]:
        other.num_overtakes += not other.is_held
    del waiting[place]
