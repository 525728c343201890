"""maxSurge and maxUnavailable as numbers of pods; rounded as Deployments do. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_operator.model import Rollout


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a roll-out may go in either direction, in pods."""

    max_surge: int  # above what is wanted
    max_unavailable: int  # below what is wanted


def surge_limits(rollout: Rollout, wanted: int) -> Limits:
    """Return the limits of Surge: a share of surge is rounded up, one of unavailability down; never both 0."""
    surge = _resolve(rollout.max_surge, wanted, round_up=True)
    unavailable = _resolve(rollout.max_unavailable, wanted, round_up=False)
    return Limits(surge, unavailable if surge else max(1, unavailable))


def in_place_limits(rollout: Rollout, wanted: int) -> Limits:
    """Return the limits of SleepSwap and Recreate: no pod more, and always at least one at a time."""
    return Limits(0, max(1, _resolve(rollout.max_unavailable, wanted, round_up=False)))


def _resolve(value: int | str, wanted: int, *, round_up: bool) -> int:
    if isinstance(value, int):
        return value
    hundredths = int(value.removesuffix("%")) * wanted
    return -(-hundredths // 100) if round_up else hundredths // 100
