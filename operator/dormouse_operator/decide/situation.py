"""What a pass has to deal with: what was observed, and what `settle` makes of it. All other decisions read it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from dormouse_operator.decide.membership import Stance, is_released, is_stranded, stance_of
from dormouse_operator.decide.release import Release
from dormouse_operator.model import (
    AWAKE,
    UNMADE,
    ChildState,
    Condemnation,
    Deployment,
    Group,
    Ladder,
    Observed,
    Pod,
    PrePullState,
    Rung,
    ServiceState,
    SleepLevel,
    Worker,
    WorkerState,
)

_ASLEEP: Mapping[Rung, SleepLevel] = {Rung.LEVEL1: 1, Rung.LEVEL2: 2, Rung.LEVEL3: 3}  # the level of each rung
STUCK_AFTER = timedelta(seconds=60)  # beyond the time that a pod is given to end: a kubelet that lives needs less


def parked_places(deployment: Deployment, wanted_replicas: int) -> range:
    """Return the replicas behind those that are wanted that have a pod in STANDBY until they are."""
    return range(wanted_replicas, min(wanted_replicas + deployment.lifecycle.spares, deployment.replicas))


@dataclass(frozen=True, kw_only=True)  # without slots: what is asked often is kept once it was computed
class Situation:
    """One deployment at one moment, seen as one revision sees it."""

    observed: Observed
    release: Release
    image: str  # the worker image in use
    revision: str  # of the pods that are wanted
    pod_digest: str = ""  # of the pods that are wanted: what only another pod can change
    wanted_replicas: int  # those of the spec; fewer while the load asks for fewer pods, 0 while nobody calls
    pods: tuple[Pod, ...] = ()  # one for each replica: of several pods the leader
    workers: Mapping[str, Worker] = field(default_factory=dict)  # by pod name; absent = no answer that counts
    strangers: Mapping[str, Worker] = field(default_factory=dict)  # by pod name: of other settings than labelled
    condemned: Mapping[str, Condemnation] = field(default_factory=dict)  # by pod name: takes no command, is replaced
    unreachable: Mapping[str, str] = field(default_factory=dict)  # by pod name: why nothing of it counts
    ladder: Ladder | None = None  # where it should be, as decided from the evidence of now; None = awake
    ladder_due: datetime | None = None  # when time alone may change that
    spares: frozenset[str] = frozenset()  # names of pods that sleep on while others serve: see `spare_replicas`
    service: ServiceState | None = None
    ranks_service: ServiceState | None = None  # under which the pods of groups find each other
    budget: ChildState | None = None
    policy: ChildState | None = None
    inference_pool: ChildState | None = None
    pre_pull: PrePullState | None = None

    @property
    def deployment(self) -> Deployment:
        """Return what the user wants."""
        return self.observed.deployment

    @property
    def now(self) -> datetime:
        """Return when it was observed."""
        return self.observed.now

    @property
    def num_away(self) -> int:
        """Return how many replicas of the spec have no pod for now: nobody calls, or the load asks for fewer."""
        return self.deployment.replicas - self.wanted_replicas

    @property
    def rung(self) -> Rung:
        """Return how deep it should sleep because nobody calls; orders are no rungs."""
        return self.ladder.rung if self.ladder else Rung.ACTIVE

    @property
    def parked_places(self) -> range:
        """Return the replicas that have a pod in STANDBY until they are wanted: the next ones behind those that are."""
        return parked_places(self.deployment, self.wanted_replicas)

    @property
    def parked(self) -> tuple[Pod, ...]:
        """Return the pods that wait for their replicas to be wanted."""
        return tuple(pod for pod in self.pods if self.is_parked(pod) and not pod.is_deleting)

    @property
    def is_idle(self) -> bool:
        """Return whether it should sleep because nobody calls: then nothing of anybody's is ended for it."""
        return self.rung is not Rung.ACTIVE

    @property
    def wants_sleep(self) -> bool:
        """Return whether workers should sleep, by order or because nobody calls."""
        return self.deployment.lifecycle.desired_state == "Asleep" or self.rung in _ASLEEP

    @property
    def wants_no_pod(self) -> bool:
        """Return whether there should be no pod, by order or because nobody calls."""
        return self.deployment.lifecycle.desired_state == "Zero" or self.rung is Rung.ZERO or self.is_released

    @property
    def is_released(self) -> bool:
        """Return whether its pool has given its GPUs back, so that there should be no pod until somebody calls."""
        return self.deployment.replicas > 0 and is_released(self.deployment, self.observed.pool)

    @property
    def sleep_level(self) -> SleepLevel:
        """Return how deep workers should sleep if they should."""
        return _ASLEEP.get(self.rung, self.deployment.lifecycle.sleep_level)

    @property
    def has_replicas(self) -> bool:
        """Return whether any pod is wanted."""
        return self.wanted_replicas > 0

    @cached_property
    def replicas(self) -> tuple[Pod, ...]:
        """Return the pods that are wanted and there, by index. A group that lost a pod ends: it is not there."""
        wanted = [pod for pod in self.pods if self.is_wanted(pod) and not pod.is_deleting]
        return tuple(sorted((pod for pod in wanted if not self.group(pod).broken_reason), key=lambda pod: pod.index))

    @property
    def unmade(self) -> tuple[str, ...]:
        """Return the names of pods that say they are this object's, and that no operator made."""
        return tuple(pod.name for pod in self.pods if pod.owner_uid == UNMADE)

    @property
    def waits_for_volumes(self) -> bool:
        """Return whether an own pod, leader or follower, waits for what it mounts."""
        pods = (*self.pods, *(pod for pods in self.observed.followers.values() for pod in pods))
        return any(pod.waits_for_volumes and pod.owner_uid == self.deployment.uid for pod in pods)

    @property
    def orphans(self) -> tuple[Pod, ...]:
        """Return the followers whose leader is gone."""
        leaders = {pod.uid for pod in self.pods}
        return tuple(pod for uid, pods in self.observed.followers.items() if uid not in leaders for pod in pods)

    def group(self, leader: Pod) -> Group:
        """Return all pods of the replica that this pod leads."""
        return Group(leader, self.observed.followers.get(leader.uid, ()))

    def is_wanted(self, pod: Pod) -> bool:
        """Return whether the pod belongs to this very object, and to its present revision and scale."""
        is_ours = pod.owner_uid == self.deployment.uid
        return is_ours and self.is_current(pod) and 0 <= pod.index < self.wanted_replicas

    def is_parked(self, pod: Pod) -> bool:
        """Return whether the pod waits for its replica to be wanted: no request reached it, or its engine is gone."""
        is_ours = pod.owner_uid == self.deployment.uid and self.is_current(pod)
        is_free = not pod.has_opened or self.state(pod) is WorkerState.STANDBY
        return is_ours and is_free and pod.index in self.parked_places

    def is_current(self, pod: Pod) -> bool:
        """Return whether the pod is as wanted, so that no other has to take its place."""
        return pod.revision == self.revision and pod.name not in self.condemned

    def is_stuck(self, pod: Pod) -> bool:
        """Return whether a pod that is being deleted should have been gone long ago."""
        return pod.ends_by is not None and self.now >= pod.ends_by + STUCK_AFTER

    def is_given_up(self, pod: Pod) -> bool:
        """Return whether nobody waits for the end of a pod that is being deleted: its node may never answer again."""
        return pod.is_deleting and (pod.has_lost_node or self.is_stuck(pod))

    @property
    def spare_replicas(self) -> int:
        """Return how many of the wanted replicas sleep on while others serve."""
        return sum(pod.name in self.spares for pod in self.replicas)

    def is_spare(self, pod: Pod) -> bool:
        """Return whether the pod's worker sleeps on while others serve, because the load does not ask for it."""
        return pod.name in self.spares

    def stance(self, pod: Pod) -> Stance | None:
        """Return what its pool lets a pod do, None where it is in none."""
        return stance_of(self.deployment, self.observed.pool, pod, self.worker(pod))

    def is_stranded(self, pod: Pod) -> bool:
        """Return whether the pod rests on a slot of a pool that is gone."""
        return is_stranded(self.observed.pool, pod, self.worker(pod))

    @property
    def engaged(self) -> tuple[Pod, ...]:
        """Return the pods that are wanted and there, but for those that have no engine process for now."""
        standby = (pod for pod in self.replicas if self.state(pod) is WorkerState.STANDBY)
        idle = {pod.name for pod in standby if self.wants_sleep or self.is_spare(pod)}
        return tuple(pod for pod in self.replicas if pod.name not in idle)

    @property
    def rests_by_pool(self) -> bool:
        """Return whether its pool lets none of its replicas be awake."""
        is_member = self.deployment.placement.pool is not None
        return is_member and all(self.is_spare(pod) and pod.pool for pod in self.replicas)

    def worker(self, pod: Pod) -> Worker | None:
        """Return what is known of the pod's worker."""
        return self.workers.get(pod.name)

    def state(self, pod: Pod) -> WorkerState | None:
        """Return the state of the pod's worker, None if nothing is known."""
        worker = self.worker(pod)
        return worker.state if worker else None

    def is_light(self, pod: Pod) -> bool:
        """Return whether the pod's worker sleeps less deep than it should."""
        worker = self.worker(pod)
        asleep_at = worker.sleep_level if worker and worker.state is WorkerState.ASLEEP else None
        return asleep_at is not None and asleep_at < self.sleep_level

    def counter_when_decided(self, pod: Pod) -> int | None:
        """Return the request counter of a worker that should fall asleep as nobody calls, as it was at the decision.

        None for one that is not awake, and while nothing of the kind is decided.
        """
        worker = self.worker(pod)
        if not self.is_idle or worker is None or worker.state not in AWAKE:
            return None
        rank = self.deployment.recorded.rank_of(pod.name)
        known = rank.request_counter if rank else None
        return worker.request_counter if known is None else known

    def allocated_gpu_blocks(self, pod: Pod) -> int:
        """Return the blocks that the pod holds, or would hold again after a wake."""
        worker = self.worker(pod)
        if worker is None:
            return 0
        if worker.state in AWAKE:
            return worker.num_gpu_blocks
        rank = self.deployment.recorded.rank_of(pod.name)
        is_kept = worker.state in {WorkerState.ASLEEP, WorkerState.WAKING}
        return rank.allocated_gpu_blocks if rank and is_kept else 0
