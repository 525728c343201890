"""maxSurge and maxUnavailable as numbers of pods; rounded as Deployments do. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from dormouse_operator.model import Deployment, Rollout


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a roll-out may go in either direction, in pods."""

    max_surge: int  # above what is wanted
    max_unavailable: int  # below what is wanted


def may_surge(deployment: Deployment) -> bool:
    """Return whether there may be more pods than wanted. A pool's slot is for one pod of each replica."""
    return deployment.rollout.strategy == "Surge" and deployment.placement.pool is None


def surge_limits(rollout: Rollout, wanted: int) -> Limits:
    """Return the limits of Surge: a share of surge is rounded up, one of unavailability down; never both 0."""
    surge = ceil(_pods(rollout.max_surge, wanted))
    unavailable = floor(_pods(rollout.max_unavailable, wanted))
    return Limits(surge, unavailable if surge else max(1, unavailable))


def in_place_limits(rollout: Rollout, wanted: int) -> Limits:
    """Return the limits of SleepSwap, Recreate and members of pools: no pod more, and always at least one at a time."""
    return Limits(0, max(1, floor(_pods(rollout.max_unavailable, wanted))))


def _pods(value: int | str, wanted: int) -> Fraction:
    """Return a number of pods, or a share of those wanted as it is before rounding."""
    return Fraction(value) if isinstance(value, int) else Fraction(int(value.removesuffix("%")) * wanted, 100)
