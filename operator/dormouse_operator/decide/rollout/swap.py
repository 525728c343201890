"""How many engines to swap now, inside the pods that own the devices. Pure, knows numbers only, stores nothing.

    unavailable = wanted - ready
    start       = max unavailable - unavailable        never above the candidates

A swap takes its replica out of the Service from the first to the last moment, so there is no surge, and at least one
replica has to be allowed to be away.
"""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_operator.decide.rollout.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapCounts:
    """How many replicas there are."""

    wanted: int
    ready: int  # of whatever revision; one that is being swapped is not
    candidates: int  # ready ones that still have the old engine


def swaps_to_start(counts: SwapCounts, limits: Limits) -> int:
    """Return how many swaps to start now."""
    unavailable = max(0, counts.wanted - counts.ready)
    return max(0, min(counts.candidates, limits.max_unavailable - unavailable))
