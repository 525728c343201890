"""Starving: a member has nothing awake and has waited for a slot longer than any should. Pure."""

from __future__ import annotations

from dormouse_operator.decide.pools.plan import PoolPlan
from dormouse_operator.model import Condition
from dormouse_operator.model.pool_observed import PoolObserved

TYPE = "Starving"


def evaluate(observed: PoolObserved, plan: PoolPlan) -> Condition:
    """See the module. The message names no growing number, so that it is not written again and again."""
    limit_s = observed.pool.policy.starving_s
    if not plan.decision.starving:
        return Condition(TYPE, "False", "AsExpected", f"no member has waited {limit_s:g} s for a slot")
    names = ", ".join(str(key) for key in sorted(plan.decision.starving))
    words = f"{names}: nothing awake, and waiting for {limit_s:g} s or more; add slots, or lower other members' weights"
    return Condition(TYPE, "True", "MemberStarves", words, is_failure=True)
