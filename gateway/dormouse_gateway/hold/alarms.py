"""When to look at each line again. Owns the timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, KeysView

from dormouse_kube.reflector import ObjectKey


class Alarms:
    """One timer for each line at most."""

    def __init__(self, on_time: Callable[[ObjectKey], None]) -> None:
        self._on_time = on_time
        self._timers: dict[ObjectKey, asyncio.TimerHandle] = {}

    def __repr__(self) -> str:
        return f"Alarms({sorted(self._timers)})"

    def keys(self) -> KeysView[ObjectKey]:
        """Return the lines that have a timer; one that went off counts until it is set anew."""
        return self._timers.keys()

    def due_s(self, key: ObjectKey) -> float:
        """Return when the line's timer goes off, on the loop's clock. Raises KeyError."""
        return self._timers[key].when()

    def set(self, key: ObjectKey, delay_s: float) -> None:
        """Go off after so long, and not when it was set for before."""
        self.drop(key)
        self._timers[key] = asyncio.get_running_loop().call_later(delay_s, self._on_time, key)

    def drop(self, key: ObjectKey) -> None:
        """Do not go off."""
        if handle := self._timers.pop(key, None):
            handle.cancel()
