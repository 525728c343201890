"""What the status says of a canary, and whether that is news. Pure.

Gateways give a canary its share, and stop by themselves when they see it fail; that one did is written here, so that
all of them stop, also those that start later. It stays so for this try, which another spec ends.
"""

from __future__ import annotations

from typing import Any

from dormouse_api.canaries import ABORTED
from dormouse_operator.decide.situation import Situation
from dormouse_operator.manifests import EventRecord
from dormouse_operator.model.canary import Canary

SERVING, PAUSED, NO_STANDING = "Serving", "Paused", "NoStanding"
_MAX_MESSAGE = 4096
_EVENT = "CanaryAborted"


def write(situation: Situation) -> dict[str, Any] | None:
    """Return what the status says; None for a deployment that is no canary."""
    canary = situation.deployment.canary
    if canary is None:
        return None
    state, words = _state(situation, canary)
    return {"state": state, "message": words[:_MAX_MESSAGE], "try": canary.try_name}


def news(situation: Situation) -> EventRecord | None:
    """Return the Event of an abort that is not written yet."""
    told, canary = write(situation), situation.deployment.canary
    if told is None or canary is None or told["state"] != ABORTED or canary.aborted_as:
        return None
    return EventRecord("Warning", _EVENT, told["message"])


def _state(situation: Situation, canary: Canary) -> tuple[str, str]:
    """Return where it stands, and why."""
    if canary.aborted_as:
        return ABORTED, canary.aborted_as
    if situation.observed.canary_fault:
        return ABORTED, situation.observed.canary_fault
    if canary.of == situation.deployment.key.name:
        return NO_STANDING, "spec.canary.of is this deployment itself; name the one whose requests it shall share"
    if not situation.observed.has_standing:
        return NO_STANDING, f"there is no InferenceDeployment {canary.of} in this namespace"
    if canary.is_paused:
        return PAUSED, f"spec.canary.paused is true: {canary.of} has all of its requests"
    return SERVING, f"gateways give it {canary.weight} % of the requests of {canary.of}"
