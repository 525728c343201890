"""Whether a rank that says hello belongs to the group. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dormouse_worker.common.layout import Layout
from dormouse_worker.executor.ranks.messages import Hello

# what must be equal, and the words for it; in the order in which they are told
ALIKE = (
    ("group_id", "group id"),
    ("version", "version"),
    ("settings_digest", "settings digest"),
    ("model_digest", "model digest"),
)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the leader knows of its ranks before they come."""

    tensor: int
    pipeline: int
    hello: Hello  # of a rank that fits; rank and pod are not looked at

    @property
    def world_size(self) -> int:
        """Return how many ranks there must be."""
        return Layout(self.tensor, self.pipeline).world_size


def refusal_of(hello: Hello, expected: Expected, present: Collection[int]) -> str:
    """Return why this one is refused, "" if it is welcome."""
    who = describe(hello.rank, hello.pod)
    if not 0 <= hello.rank < expected.world_size:
        return f"{who}: the group has ranks 0 to {expected.world_size - 1}"
    for field, words in ALIKE:
        said, wanted = getattr(hello, field), getattr(expected.hello, field)
        if said != wanted:
            return f"{who}: its {words} is {said!r}, the leader's is {wanted!r}"
    if hello.rank in present:
        return f"{who}: this rank is there already"
    return ""


def describe(rank: int, pod: str) -> str:
    """Return who a rank is, for people."""
    return f"rank {rank} (pod {pod})" if pod else f"rank {rank}"
