"""The next step of one pod on its way out: gate shut → endpoints gone → requests done or time over → delete. Pure.

Where no request can run the pod is deleted at once.
"""

from __future__ import annotations

from dormouse_operator.decide.actions import DeletePod, RemovePod, SetGate
from dormouse_operator.decide.draining import is_late
from dormouse_operator.decide.rollout.inventory import LEAVING
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import AWAKE, Pod


def next_step(situation: Situation, pod: Pod) -> DeletePod | RemovePod | SetGate | None:
    """Return the one next step, None while the endpoints are still there or the worker does not answer."""
    if not _may_have_requests(situation, pod):
        return DeletePod(pod)
    if pod.gate_open or pod.gate_reason != LEAVING:
        return SetGate(pod, is_open=False, reason=LEAVING)
    if is_late(situation, pod):
        return RemovePod(pod, must_end=True)
    if pod.is_ready:
        return None
    if (
        pod.name in situation.condemned or pod.name in situation.observed.refusing
    ):  # it takes no order to drain: the signal to end makes it
        return RemovePod(pod, must_end=True)
    return None if situation.state(pod) is None else RemovePod(pod, must_end=False)


def _may_have_requests(situation: Situation, pod: Pod) -> bool:
    """Return whether a request may run there. A worker that does not answer may only be cut off from here."""
    if pod.has_ended or pod.owner_uid != situation.deployment.uid:
        return False
    state = situation.state(pod)
    is_cut_off = state is None and pod.can_be_asked and pod.has_opened
    return is_cut_off or state in AWAKE
