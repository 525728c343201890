"""How much memory of its node a worker's pod asks for: less while it sleeps deeply, all of it before it wakes. Pure.

    STANDBY: a front alone        level 2: front and engine process, without weights        else: as the pod was made

Requests are what the scheduler counts with, so that others may have the rest meanwhile. Limits stay as they are. A wake
waits until the kubelet has given all of it back, as others may have it.
"""

from __future__ import annotations

from dormouse_operator.decide.actions import ResizeMemory
from dormouse_operator.decide.membership import Stance
from dormouse_operator.decide.situation import Situation
from dormouse_operator.manifests import rest_bytes
from dormouse_operator.model import Pod, WorkerState
from dormouse_operator.model.units import GIB

_STANDBY_BYTES = GIB  # a front with its tokenizer, and the processes that render and compile for it
_WITHOUT_WEIGHTS = 2  # sleep level


def steps(situation: Situation) -> list[ResizeMemory]:
    """Return the pods whose request is another one than it should be."""
    wanted = ((pod, _wanted_bytes(situation, pod)) for pod in (*situation.replicas, *situation.parked))
    return [
        ResizeMemory(pod, num_bytes) for pod, num_bytes in wanted if num_bytes not in {0, pod.memory.requested_bytes}
    ]


def waits_for_memory(situation: Situation) -> Pod | None:
    """Return a pod whose wake waits for memory that the kubelet cannot give back, None if there is none."""
    waiting = (pod for pod in situation.replicas if pod.memory.is_short and pod.memory.complaint)
    return next((pod for pod in waiting if not _rests(situation, pod)), None)


def _wanted_bytes(situation: Situation, pod: Pod) -> int:
    """Return what a pod should ask for, 0 where that cannot be changed, or is not known."""
    worker = situation.worker(pod)
    if worker is None or pod.has_ended or not pod.memory.can_change:
        return 0
    if not (situation.deployment.lifecycle.shrinks_requests and _rests(situation, pod)):
        return pod.memory.full_bytes
    if worker.state is WorkerState.STANDBY:
        return min(pod.memory.full_bytes, _STANDBY_BYTES)
    if worker.state is WorkerState.ASLEEP and worker.sleep_level == _WITHOUT_WEIGHTS:
        return min(pod.memory.full_bytes, rest_bytes(situation.deployment))
    return pod.memory.full_bytes


def _rests(situation: Situation, pod: Pod) -> bool:
    """Return whether nobody is about to wake it."""
    if stance := situation.stance(pod):
        return stance is Stance.RESTS
    return situation.wants_sleep or situation.is_spare(pod) or situation.is_parked(pod)
