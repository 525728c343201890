"""What holds of a pool: one condition, one file. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dormouse_operator.decide.pools.conditions import allocated, fouled, starving
from dormouse_operator.decide.pools.plan import PoolPlan
from dormouse_operator.model import Condition
from dormouse_operator.model.pool_observed import PoolObserved

Conditions = Mapping[str, Condition]  # by type, in the order of the status


def evaluate_all(observed: PoolObserved, plan: PoolPlan) -> Conditions:
    """Return all conditions of a pool as it will stand."""
    found = (allocated.evaluate(observed, plan.idleness), fouled.evaluate(plan), starving.evaluate(observed, plan))
    return {condition.type: condition for condition in found}
