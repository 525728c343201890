"""Available: a request can be answered now, because at least one replica serves. Pure."""

from __future__ import annotations

from dormouse_operator.decide.conditions.ready import serving
from dormouse_operator.decide.conditions.verdicts import holds, idle_words, no_replicas, not_yet
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition

TYPE = "Available"


def evaluate(situation: Situation) -> Condition:
    """See the module."""
    wanted, there = situation.wanted_replicas, serving(situation)
    if off := no_replicas(TYPE, situation):
        return not_yet(TYPE, off.reason, off.message)
    if there:
        return holds(TYPE, "Serving", f"{len(there)} of {situation.deployment.replicas} replicas serve")
    if situation.ladder and situation.wants_sleep:
        return not_yet(TYPE, "Asleep", f"{idle_words(situation.ladder)}: asleep; a request wakes it")
    if situation.wants_sleep:
        return not_yet(TYPE, "Asleep", "spec.lifecycle.desiredState is Asleep: requests are refused")
    return not_yet(TYPE, "NoneServes", f"0 of {wanted} replicas serve; the other conditions say why")
