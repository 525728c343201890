"""How many replicas of a deployment that was woken should be awake: few at first, more as the load asks for. Pure.

It never asks for fewer: a deployment that nobody calls sleeps as a whole, and replicas that a lower load does not need
are taken away by the scaler, where there is one.
"""

from __future__ import annotations

from dormouse_api.names import DEFAULT_MAX_NUM_SEQS
from dormouse_operator.decide.scaling import DEFAULTS, asked_for
from dormouse_operator.model import Activity, Deployment, Scaling


def measures_of(deployment: Deployment) -> Scaling:
    """Return by which measures replicas are asked for; where none are named, by half of what a worker runs at once."""
    if deployment.scaling:
        return deployment.scaling
    num_seqs = deployment.engine.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    return Scaling(max_replicas=max(1, deployment.replicas), target_outstanding=max(1, num_seqs // 2))


def wanted_awake(least: int, replicas: int, measures: Scaling, activity: Activity | None) -> int | None:
    """Return how many of so many replicas should be awake, None for all. A load that is not known asks for no more.

    `least` (1 or more) are awake, or wanted already.
    """
    asked = asked_for(measures, least, activity, DEFAULTS.tolerance) if activity else least
    number = max(least, asked)
    return number if number < replicas else None
