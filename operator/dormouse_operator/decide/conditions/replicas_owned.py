"""ReplicasOwned: one writer sets spec.replicas, and which. Pure."""

from __future__ import annotations

from dormouse_operator.decide.conditions.verdicts import failed, holds
from dormouse_operator.decide.scale_rivals import STANDS_BACK, rival_of
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition
from dormouse_operator.parse import format_time

TYPE = "ReplicasOwned"


def evaluate(situation: Situation) -> Condition:
    """See the module."""
    deployment = situation.deployment
    if rival := rival_of(deployment, situation.now):
        words = f"spec.scaling is set, and {rival.manager} set spec.replicas at {format_time(rival.at)}"
        until = format_time(rival.at + STANDS_BACK)
        return failed(
            TYPE, "TwoWriters", f"{words}; the operator stands back until {until}. Remove spec.scaling or the other"
        )
    if scaling := deployment.scaling:
        words = f"spec.scaling: the operator keeps {scaling.min_replicas} to {scaling.max_replicas} replicas by load"
        return holds(TYPE, "Operator", words)
    if writer := deployment.scaled_by:
        words = f"{writer.manager} set spec.replicas through the scale subresource at {format_time(writer.at)}"
        return holds(TYPE, "Scaled", words)
    return holds(TYPE, "Spec", "spec.replicas stands as it was applied")
