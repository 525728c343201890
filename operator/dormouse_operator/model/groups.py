"""The pods of one replica: a leader and the followers that were made for it. They live and end together. Pure.

A leader is made first and followers carry its UID, so that none of an earlier group is taken for one of a later.
Whether a follower is still to come or has gone is told by the leader's gate: its first reason says that all were there.
"""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_operator.model.running import CRASH_LOOP, Pod


def follower_name(leader: str, ordinal: int) -> str:
    """Return the name of a follower of the leader of this name."""
    return f"{leader}-{ordinal}"


def leader_name(follower: str) -> str:
    """Return the name of the leader of the follower of this name."""
    return follower.rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class Group:
    """One replica's pods. Most have a leader only."""

    leader: Pod
    followers: tuple[Pod, ...] = ()

    @property
    def members(self) -> tuple[Pod, ...]:
        """Return all pods, by ordinal."""
        return (self.leader, *sorted(self.followers, key=lambda pod: pod.ordinal))

    @property
    def missing(self) -> tuple[int, ...]:
        """Return the ordinals without a pod."""
        there = {pod.ordinal for pod in self.followers}
        return tuple(ordinal for ordinal in range(1, self.leader.group_size) if ordinal not in there)

    @property
    def broken_reason(self) -> str:
        """Return why the group cannot live on, "" if it can. What becomes of the leader itself is no breach."""
        if self.leader.group_size == 1:  # nearly all: nothing to look through
            return ""
        for pod in self.followers:
            if pod.has_ended:
                return f"pod {pod.name} ended: {pod.end_message or 'no reason given'}"
            if pod.is_deleting:
                return f"pod {pod.name} is being deleted"
        if self.missing and self.leader.gate_reason:
            return f"pod {self.pod_name(self.missing[0] * self.num_pod_ranks)} is gone"
        return ""

    @property
    def looping(self) -> Pod | None:
        """Return a follower that the kubelet starts again and again."""
        return next((pod for pod in self.members[1:] if pod.container.waiting_reason == CRASH_LOOP), None)

    @property
    def is_scheduled(self) -> bool:
        """Return whether all pods are there and have a node."""
        return not self.missing and all(pod.is_scheduled for pod in self.members)

    @property
    def num_pod_ranks(self) -> int:
        """Return how many ranks each pod has."""
        return self.leader.num_ranks // self.leader.group_size

    def pod_name(self, rank: int) -> str:
        """Return the name of the pod that a rank is in. A pod of its own has whatever it says that it has."""
        ordinal = rank // self.num_pod_ranks if self.leader.group_size > 1 else 0
        return follower_name(self.leader.name, ordinal) if ordinal else self.leader.name

    def ranks_of(self, pod: Pod) -> str:
        """Return in words which ranks a pod has."""
        first = pod.ordinal * self.num_pod_ranks
        return f"rank {first}" if self.num_pod_ranks == 1 else f"ranks {first} to {first + self.num_pod_ranks - 1}"
