"""How many streams of a model each key may run while others use it, too. Owns the counts; knows no requests.

A key that is alone may take all. Of several each may take its share by weight, and beyond that what the others leave:
for each of them what it runs and one more is kept free, up to its share. So one that sends without end slows nobody's
first token, and a place or two are all that is ever kept for those who do not come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

RECENT_S = 30.0  # so long after its last request a key counts as one that uses the model


class Flow(NamedTuple):
    """Whose request it is, and the weight of that in the line and among streams."""

    name: str = ""  # of a key; "" for all who call without one
    weight: int = 1


NOBODYS = Flow()


@dataclass(slots=True)
class _Member:
    """One flow at one deployment."""

    weight: int
    running: int = 0
    seen_s: float = 0.0


@dataclass(slots=True)
class Shares:
    """The flows of all deployments that run something, or did lately."""

    clock: Callable[[], float] = time.monotonic
    _members: dict[Hashable, dict[str, _Member]] = field(default_factory=dict)  # by deployment, by name

    def __repr__(self) -> str:
        """Show what runs."""
        running = {key: {name: one.running for name, one in of.items()} for key, of in self._members.items()}
        return f"Shares({running})"

    def arrive(self, deployment: Hashable, flow: Flow) -> None:
        """Note that a request came."""
        self._forget(deployment)
        member = self._members.setdefault(deployment, {}).setdefault(flow.name, _Member(flow.weight))
        member.weight, member.seen_s = flow.weight, self.clock()

    def may_start(self, deployment: Hashable, flow: Flow, num_places: Callable[[], int]) -> bool:
        """Return whether the flow may run one more, where so many can run at a time."""
        members = self._members.get(deployment, {})
        others = {name: one for name, one in members.items() if name != flow.name and self._is_active(one)}
        if not others:
            return True
        mine, total = members.get(flow.name, _Member(flow.weight)), num_places()
        weights = flow.weight + sum(one.weight for one in others.values())
        if mine.running < max(1, total * flow.weight // weights):
            return True
        kept = sum(min(max(1, total * one.weight // weights), one.running + 1) for one in others.values())
        return mine.running < total - kept

    def start(self, deployment: Hashable, flow: Flow) -> None:
        """Count a stream."""
        self._members.setdefault(deployment, {}).setdefault(flow.name, _Member(flow.weight)).running += 1

    def end(self, deployment: Hashable, flow: Flow) -> None:
        """Count the end of a stream."""
        member = self._members[deployment][flow.name]
        member.running -= 1
        member.seen_s = max(member.seen_s, self.clock())
        assert member.running >= 0, f"{flow.name} ended more than it began: {self!r}"

    def _is_active(self, member: _Member) -> bool:
        return member.running > 0 or self.clock() - member.seen_s < RECENT_S

    def _forget(self, deployment: Hashable) -> None:
        members = self._members.get(deployment, {})
        for name in [name for name, one in members.items() if not self._is_active(one)]:
            del members[name]
