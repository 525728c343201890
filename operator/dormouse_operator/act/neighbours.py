"""Keeps in mind which deployments outside of pools share a GPU, and whose turn it is. Owns that.

`neighbours` decides. What it knows can be lost: an operator that starts anew looks at every deployment. Until it has
seen the neighbours of one it holds nobody up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from dormouse_operator.decide.neighbours import Gpu, Guest, guest_of, turns_of
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Key, Turn


class NeighbourBook:
    """What deployments have of GPUs, as they were last observed."""

    def __init__(self, mark: Callable[[Key], None]) -> None:
        """Take who hears of deployments that have to be looked at."""
        self._mark = mark
        self._guests: dict[Key, Guest] = {}
        self._on_gpu: defaultdict[Gpu, set[Key]] = defaultdict(set)
        self._turns: dict[Key, Turn] = {}

    def __repr__(self) -> str:
        """Show the counts."""
        return f"NeighbourBook({len(self._guests)} on GPUs, {len(self._turns)} take turns)"

    def turn_of(self, key: Key) -> Turn | None:
        """Return what a deployment has to do with its neighbours, None where there is room for all."""
        return self._turns.get(key)

    def saw(self, situation: Situation) -> None:
        """Take a deployment as it was just observed."""
        key, found = situation.deployment.key, guest_of(situation)
        before = self._guests.get(key)
        guest = found.after(before) if found else None
        if guest == before:
            return
        near = self._near(key)
        for gpu in before.gpus if before else ():
            self._on_gpu[gpu].discard(key)
        self._guests.pop(key, None)
        if guest:
            self._guests[key] = guest
            for gpu in guest.gpus:
                self._on_gpu[gpu].add(key)
        self._decide(near | self._near(key))

    def forget(self, key: Key) -> None:
        """Know that a deployment has no GPU any more; safe if it never had."""
        near, guest = self._near(key), self._guests.pop(key, None)
        for gpu in guest.gpus if guest else ():
            self._on_gpu[gpu].discard(key)
        self._decide(near)

    def rejected(self, key: Key, uid: str) -> None:
        """Know that nobody can say what becomes of a deployment: what it has it keeps."""

    def _near(self, key: Key) -> set[Key]:
        """Return a deployment, and all that have to do with it through any number of GPUs."""
        near, found = {key}, [key]
        while found:
            guest = self._guests.get(found.pop())
            beside = {other for gpu in guest.gpus for other in self._on_gpu[gpu]} if guest else set()
            found += beside - near
            near |= beside
        return near

    def _decide(self, near: Iterable[Key]) -> None:
        """Decide anew for these, and have those looked at whose turn has changed."""
        turns = turns_of(self._guests[key] for key in near if key in self._guests)
        for key in near:
            before, now = self._turns.pop(key, None), turns.get(key)
            if now:
                self._turns[key] = now
            if before != now:
                self._mark(key)
