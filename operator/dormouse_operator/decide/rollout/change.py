"""What a change of the spec takes. Pure.

Replicas, scaling, lifecycle and rollout are in no digest: their change is no change of a pod. How many blocks a cache
holds is agreed from reports and not written in the spec: a worker is re-initialised when the agreement asks for it.
"""

from __future__ import annotations

from enum import StrEnum

from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Pod


class Change(StrEnum):
    """What has to be exchanged; each takes more than the one before."""

    NOTHING = "Nothing"  # the status is written, or blocks are agreed on anew
    ENGINE = "Engine"  # another engine, in the pod that is there
    POD = "Pod"


def change_of(situation: Situation, pod: Pod) -> Change:
    """Return what has to be exchanged for the pod to be as the spec wants it."""
    if situation.is_current(pod):
        return Change.NOTHING
    is_group = pod.group_size > 1  # its engines are in several pods, none of which can be without the others
    needs_pod = is_group or pod.name in situation.condemned or pod.pod_digest != situation.pod_digest
    return Change.POD if needs_pod else Change.ENGINE
