"""Which pods are new, old, about to get another engine, on their way out. Pure, stores nothing.

What makes it hard: (1) an old pod that never served has nothing to keep it; one that served goes on until others do.
(2) an order to sleep makes a sleeping pod as good as a serving one. (3) the marks are in the pods, as
reasons of the closed gate, so that a new operator goes on where the last one stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from dormouse_operator.decide.rollout.change import Change, change_of
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import WAKEABLE, Pod, WorkerState

LEAVING = "Leaving"  # reason of the gate of a pod that is drained to be deleted
SWAPPING = "Swapping"  # reason of the gate of a pod that is drained to get another engine
SILENCE = timedelta(seconds=60)  # of a worker whose engine is to be swapped; then another pod takes its place


@dataclass(frozen=True, slots=True)
class Standing:
    """The pods of a deployment by what becomes of them. Pods that are being deleted are in none.

    Of groups the leaders stand here for all their pods; one that lost a pod is ending.
    """

    new: tuple[Pod, ...]  # as wanted
    swappable: tuple[Pod, ...]  # get another engine where they are
    parked: tuple[Pod, ...]  # as wanted, and in STANDBY until they are
    old: tuple[Pod, ...]  # nobody wants them, but they serve or may serve again
    ending: tuple[Pod, ...]  # on their way out, or never to serve again
    num_deleting: int  # ours that are gone soon


def is_available(situation: Situation, pod: Pod) -> bool:
    """Return whether the pod is as it is ordered to be: serves, or sleeps or is about to."""
    state = situation.state(pod)
    if pod.name in situation.condemned:  # what it says does not count; the kubelet asks it, too
        return pod.is_ready and pod.gate_open
    if situation.is_spare(pod):
        return True
    if situation.wants_sleep:
        return state in WAKEABLE
    return pod.is_ready and pod.gate_open and state is WorkerState.READY


def serving(situation: Situation) -> tuple[Pod, ...]:
    """Return the pods that serve, those of an older revision included."""
    return tuple(
        pod
        for pod in situation.pods
        if pod.owner_uid == situation.deployment.uid
        and not (pod.is_deleting or pod.has_ended or situation.wants_sleep or situation.is_spare(pod))
        and not situation.group(pod).broken_reason
        and is_available(situation, pod)
    )


def is_rolling_out(situation: Situation, standing: Standing) -> bool:
    """Return whether pods that another is to take the place of still serve, or may serve again."""
    return any(not situation.is_current(pod) for pod in (*standing.swappable, *standing.old))


def is_swapping(situation: Situation, pod: Pod) -> bool:
    """Return whether the pod is out of the Service for another engine, or gets it now."""
    worker = situation.worker(pod)
    can_be_swapped = _is_marked(pod) and situation.state(pod) in WAKEABLE
    return can_be_swapped or bool(worker and worker.swapping_to)


def is_exchanging(situation: Situation, standing: Standing) -> bool:
    """Return whether anything is left that another takes the place of."""
    others = [pod for pod in standing.ending if not situation.is_current(pod)]
    return bool(others) or is_rolling_out(situation, standing)


def classify_pods(situation: Situation) -> Standing:
    """Return who is where."""
    ours = [pod for pod in situation.pods if pod.owner_uid == situation.deployment.uid]
    alive = [pod for pod in ours if not (pod.is_deleting or pod.has_ended or situation.group(pod).broken_reason)]
    new = _one_per_index(pod for pod in alive if situation.is_wanted(pod) and not situation.is_stranded(pod))
    swappable = _one_per_index(pod for pod in alive if _is_swappable(situation, pod, {pod.index for pod in new}))
    parked = _one_per_index(pod for pod in alive if situation.is_parked(pod))
    kept = {pod.name for pod in (*new, *swappable, *parked)}
    rest = [pod for pod in alive if pod.name not in kept]
    old = tuple(pod for pod in rest if not _is_lost(situation, pod))
    staying = kept | {pod.name for pod in old}
    return Standing(
        new=new,
        swappable=swappable,
        parked=parked,
        old=old,
        ending=tuple(pod for pod in situation.pods if not pod.is_deleting and pod.name not in staying),
        num_deleting=_num_waited_for(situation, ours),
    )


def _num_waited_for(situation: Situation, ours: Iterable[Pod]) -> int:
    """Return how many replicas are gone soon and hold their devices until then."""
    return sum(pod.is_deleting and not situation.is_given_up(pod) for pod in ours) + len(
        {pod.leader_uid for pod in situation.orphans}
    )


def _one_per_index(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Return the first pod of each index: a swap that ends late may find its place taken."""
    by_index: dict[int, Pod] = {}
    for pod in pods:
        by_index.setdefault(pod.index, pod)
    return tuple(by_index[index] for index in sorted(by_index))


def _is_swappable(situation: Situation, pod: Pod, filled: set[int]) -> bool:
    """Return whether the pod's engine can be swapped: one serves, sleeps, or comes up; the place is free.

    A worker that is not heard for a moment, or whose probe was missed, keeps its pod: it owns the device. Not one of a
    pool: a second engine would need a grant. Nor one in STANDBY, which has none to swap, and nothing to lose.
    """
    if (
        pod.pool
        or situation.state(pod) is WorkerState.STANDBY
        or situation.deployment.rollout.strategy != "SleepSwap"
        or change_of(situation, pod) is not Change.ENGINE
    ):
        return False
    is_in_place = 0 <= pod.index < situation.wanted_replicas and pod.index not in filled
    serves = is_available(situation, pod) or _may_be_back(situation, pod)
    is_alive = serves or is_swapping(situation, pod) or pod.name in situation.strangers
    is_new_engine = _is_marked(pod) and situation.state(pod) not in {None, WorkerState.FAILED}
    return is_in_place and (is_alive or is_new_engine)


def _may_be_back(situation: Situation, pod: Pod) -> bool:
    """Return whether the worker of a pod that served missed an answer, or a probe, a moment ago."""
    stays = pod.has_opened and pod.can_be_asked and not _is_leaving(pod)
    is_silent = situation.state(pod) is None and pod.name not in situation.observed.refusing
    is_unready = situation.state(pod) is WorkerState.READY
    return stays and (is_silent or is_unready) and situation.now < _patience_ends(situation, pod)


def next_patience(situation: Situation, standing: Standing) -> datetime | None:
    """Return until when the first pod is left alone that missed an answer, or a probe; None if none did."""
    waiting = (pod for pod in standing.swappable if _may_be_back(situation, pod))
    return min((_patience_ends(situation, pod) for pod in waiting), default=None)


def _patience_ends(situation: Situation, pod: Pod) -> datetime:
    """Return until when nothing is made of a silence: a while after the spec changed, or the pod's swap began."""
    recorded = situation.deployment.recorded.rollout
    is_recorded = recorded is not None and recorded.revision == situation.revision
    begin = recorded.since if recorded and is_recorded and recorded.since else situation.now
    began_to_swap = pod.gate_since if pod.gate_since and _is_marked(pod) else begin
    return max(begin, began_to_swap) + SILENCE


def _is_marked(pod: Pod) -> bool:
    return not pod.gate_open and pod.gate_reason == SWAPPING


def _is_lost(situation: Situation, pod: Pod) -> bool:
    """Return whether the pod leaves already, or never served and never will, or cannot any more where it is."""
    has_failed = situation.state(pod) is WorkerState.FAILED
    never_served = not pod.has_opened and not is_available(situation, pod)
    return has_failed or never_served or _is_leaving(pod) or situation.is_stranded(pod)


def _is_leaving(pod: Pod) -> bool:
    return pod.gate_reason == LEAVING and not pod.gate_open
