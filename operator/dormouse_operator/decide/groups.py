"""What groups of pods need beside what their leaders do: all pods made, marked as begun, ended as one. Pure, no memory.

    leader there, never marked     make the followers that are missing; when all are there, mark the leader
    marked                         a follower that is gone, ended or being deleted ends the leader (`rollout.standing`)
    leader gone                    its followers are deleted; a new group begins when the last of them is gone
    not all have a node in time    one such group ends and begins anew: two that hold half of what both need would wait
                                   for ever

The gates of followers are what their leader's is: so a disruption budget sees a group serve, or not, with all its pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from dormouse_operator.decide.actions import Action, CreateFollower, DeletePod, SetGate
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import FORMED, Pod


def steps(situation: Situation, leaders: Iterable[Pod]) -> list[Action]:
    """Return what to do now; `leaders` are the pods that are wanted and stay."""
    ends = [DeletePod(pod) for pod in situation.orphans if not pod.is_deleting]
    return [*_begin(situation, leaders), *_follow(situation), *_release(situation), *ends]


def _begin(situation: Situation, leaders: Iterable[Pod]) -> list[Action]:
    """Return what brings groups about whose pods were never all there."""
    actions: list[Action] = []
    for leader in leaders:
        if leader.group_size == 1 or leader.gate_reason:
            continue
        missing = situation.group(leader).missing
        actions += [CreateFollower(leader, ordinal) for ordinal in missing]
        actions += [] if missing else [SetGate(leader, is_open=False, reason=FORMED)]
    return actions


def _follow(situation: Situation) -> list[SetGate]:
    """Return what makes the gates of followers those of their leaders."""
    pairs = ((leader, pod) for leader in situation.pods for pod in situation.group(leader).followers)
    return [
        SetGate(pod, is_open=leader.gate_open, reason=leader.gate_reason)
        for leader, pod in pairs
        if pod.gate_open != leader.gate_open and not (pod.is_deleting or pod.has_ended)
    ]


def _release(situation: Situation) -> list[Action]:
    """Return the end of a group that waits too long for nodes: of those that hold some, else of all, the youngest."""
    ends = _release_due(situation)
    if ends is None or situation.now < ends:
        return []
    return [DeletePod(max(_waiting(situation), key=lambda pod: (_holds_node(situation, pod), _begun(situation, pod))))]


def _release_due(situation: Situation) -> datetime | None:
    """Return when a group gives back what it holds; None if none waits, or pods are still to come or go.

    The time runs anew with each group that begins: so the others can take what the last one gave back.
    """
    is_moving = situation.orphans or any(pod.is_deleting for pod in situation.pods)
    if is_moving or len(situation.replicas) < situation.wanted_replicas:
        return None
    return max((scheduling_ends(situation, leader) for leader in _waiting(situation)), default=None)


def _waiting(situation: Situation) -> list[Pod]:
    """Return the leaders of groups of which pods have no node. A queue admits whole groups: those wait for it."""
    grouped = (pod for pod in situation.replicas if pod.group_size > 1 and not pod.queue)
    return [pod for pod in grouped if not situation.group(pod).is_scheduled]


def _holds_node(situation: Situation, leader: Pod) -> bool:
    return any(pod.is_scheduled for pod in situation.group(leader).members)


def _begun(situation: Situation, leader: Pod) -> tuple[datetime, int]:
    return leader.created or situation.now, leader.index


def scheduling_ends(situation: Situation, leader: Pod) -> datetime:
    """Return until when all pods of a group should have a node."""
    limit = timedelta(seconds=situation.deployment.parallelism.scheduling_deadline_s)
    return (leader.created or situation.now) + limit


def next_deadline(situation: Situation) -> datetime | None:
    """Return when the next group is late that has pods without a node, the last of which ends one; None if none is."""
    ends = [scheduling_ends(situation, leader) for leader in _waiting(situation)]
    return min((end for end in ends if end > situation.now), default=None)
