"""Keeps in mind which deployments hold copies in host memory, and whose have to go. Owns that.

`host_memory_eviction` decides. What it knows can be lost: an operator that starts anew looks at every deployment and
hears it again. Until then it knows of too few copies, and nothing is evicted that should stay.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from dormouse_operator.decide.host_memory_eviction import Copies, copies_of, evictions
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Key


class HostMemoryBook:
    """The copies of all deployments, as they were last observed."""

    def __init__(self, limit_bytes: int, *, clock: Callable[[], datetime], mark: Callable[[Key], None]) -> None:
        """Take what copies may take on each node, and who hears of deployments that have to be looked at."""
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._mark = mark
        self._copies: dict[Key, Copies] = {}
        self._evicted: dict[Key, str] = {}

    def __repr__(self) -> str:
        """Show the counts."""
        return f"HostMemoryBook({len(self._copies)} with copies, {len(self._evicted)} to go)"

    def pressure_on(self, key: Key) -> str:
        """Return why a deployment's copies have to go, "" if they may stay."""
        return self._evicted.get(key, "")

    def saw(self, situation: Situation) -> None:
        """Take a deployment as it was just observed."""
        copies = copies_of(situation)
        if copies:
            self._copies[copies.key] = copies
            self._decide()
        else:
            self.forget(situation.deployment.key)

    def forget(self, key: Key) -> None:
        """Know that a deployment keeps nothing (any more); safe if it never did."""
        if self._copies.pop(key, None):
            self._decide()

    def rejected(self, key: Key, uid: str) -> None:  # noqa: ARG002  # as every listener is told
        """Know that nobody can say what a deployment keeps."""
        self.forget(key)

    def _decide(self) -> None:
        """Decide anew, and have those looked at whom it concerns since now."""
        before = self._evicted
        self._evicted = evictions(
            self._copies.values(), limit_bytes=self._limit_bytes, now=self._clock(), begun=before.keys()
        )
        for key in self._evicted.keys() - before.keys():
            self._mark(key)
