"""Remembers who lately wrote `replicas` over somebody else's number. Owns that; decides nothing.

With spec.scaling they are the operator's to write, and whatever is not its own is somebody else's. Without it, people
and autoscalers write them: two that do not agree are seen as the field changes its manager, turn about. Two writers
of one manager's name, such as two HorizontalPodAutoscalers, cannot be told apart. What is known here may be lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dormouse_operator.model import Contest, Deployment, Key

LATELY_S = 900.0  # so long a write counts: ours takes replicas away after 300 s, and somebody brings them back


@dataclass(slots=True)
class RecentWrites:
    """Writes of the last minutes, each with who made it and whose number it replaced."""

    made: list[tuple[float, frozenset[str]]] = field(default_factory=list)

    def add(self, now_s: float, managers: frozenset[str] = frozenset()) -> None:
        """Count one more."""
        self.made.append((now_s, managers))

    def drop_old(self, now_s: float) -> bool:
        """Forget what was long ago; return whether there was something."""
        before = len(self.made)
        self.made = [(at_s, managers) for at_s, managers in self.made if now_s - at_s < LATELY_S]
        return len(self.made) < before

    def contest(self, now_s: float) -> Contest:
        """Return how often, and who."""
        self.drop_old(now_s)
        return Contest(
            num_writes=len(self.made), writers=tuple(sorted({each for _, managers in self.made for each in managers}))
        )


@dataclass(slots=True)
class _Written:
    """A deployment whose replicas others write, as it was observed last."""

    uid: str
    generation: int
    replicas: int
    managers: frozenset[str]
    turns: RecentWrites = field(default_factory=RecentWrites)


class ReplicaWriters:
    """Who writes the replicas of deployments without spec.scaling."""

    def __init__(self) -> None:
        """Know nothing."""
        self._written: dict[Key, _Written] = {}

    def saw(self, deployment: Deployment, now_s: float) -> bool:
        """Take what was observed; return whether somebody wrote over another one's number."""
        fresh = _Written(
            deployment.uid, deployment.generation, deployment.replicas, frozenset(deployment.replica_writers)
        )
        known = self._written.get(deployment.key)
        if known is None or known.uid != fresh.uid:
            self._written[deployment.key] = fresh
            return False
        if fresh.generation <= known.generation:
            return False
        is_turn = bool(known.managers and fresh.managers - known.managers) and fresh.replicas != known.replicas
        if is_turn:
            known.turns.add(now_s, known.managers | fresh.managers)
        fresh.turns = known.turns
        self._written[deployment.key] = fresh
        return is_turn

    def contest(self, key: Key, now_s: float) -> Contest:
        """Return how often each wrote over another one lately."""
        known = self._written.get(key)
        return known.turns.contest(now_s) if known else Contest()

    def drop_old(self, now_s: float) -> list[Key]:
        """Forget what was long ago; return whom that is news about."""
        return [key for key, known in self._written.items() if known.turns.drop_old(now_s)]

    def forget(self, key: Key) -> None:
        """Know nothing of this one; safe if nothing was known."""
        self._written.pop(key, None)
