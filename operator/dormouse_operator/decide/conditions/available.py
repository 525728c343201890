"""Available: a request can be answered now, because at least one replica serves. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dormouse_operator.decide.conditions.verdicts import holds, idle_words, no_replicas, not_yet
from dormouse_operator.decide.membership import rest_of
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition, Pod

TYPE = "Available"


def evaluate(situation: Situation, serving: Sequence[Pod]) -> Condition:
    """See the module. `serving` are the pods that serve."""
    if off := no_replicas(TYPE, situation):
        return not_yet(TYPE, off.reason, off.message)
    if serving:
        return holds(TYPE, "Serving", f"{len(serving)} of {situation.deployment.replicas} replicas serve")
    if situation.rests_by_pool:
        told = rest_of(situation.deployment, situation.observed.pool)
        return not_yet(TYPE, told.reason, told.message)
    if situation.ladder and situation.wants_sleep:
        return not_yet(TYPE, "Asleep", f"{idle_words(situation.ladder)}: asleep; a request wakes it")
    if situation.wants_sleep:
        return not_yet(TYPE, "Asleep", "spec.lifecycle.desiredState is Asleep: requests are refused")
    return not_yet(TYPE, "NoneServes", f"0 of {situation.wanted_replicas} replicas serve; the other conditions say why")
