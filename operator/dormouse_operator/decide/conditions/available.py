"""Available: a request can be answered now, because at least one replica serves. Pure."""

from __future__ import annotations

from dormouse_operator.decide.conditions.ready import serving
from dormouse_operator.decide.conditions.verdicts import holds, idle_words, no_replicas, not_yet
from dormouse_operator.model import Condition, Observed

TYPE = "Available"


def evaluate(observed: Observed) -> Condition:
    """See the module."""
    wanted, there = observed.deployment.replicas, serving(observed)
    if off := no_replicas(TYPE, observed):
        return not_yet(TYPE, off.reason, off.message)
    if there:
        return holds(TYPE, "Serving", f"{len(there)} of {wanted + observed.num_away} replicas serve")
    if observed.ladder and observed.wants_sleep:
        return not_yet(TYPE, "Asleep", f"{idle_words(observed.ladder)}: asleep; a request wakes it")
    if observed.wants_sleep:
        return not_yet(TYPE, "Asleep", "spec.lifecycle.desiredState is Asleep: requests are refused")
    return not_yet(TYPE, "NoneServes", f"0 of {wanted} replicas serve; the other conditions say why")
