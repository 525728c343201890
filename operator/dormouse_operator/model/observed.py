"""Everything that one reconcile saw, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from dormouse_operator.model.running import AWAKE, Pod, Worker, WorkerState
from dormouse_operator.model.wanted import Deployment


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The Service of the deployment's name."""

    is_ours: bool
    is_current: bool  # holds what we would apply


@dataclass(frozen=True, slots=True)
class BudgetState:
    """The PodDisruptionBudget of the deployment's name."""

    uid: str
    is_ours: bool
    is_current: bool  # holds what we would apply


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything that one reconcile saw; the planner and the conditions read nothing else."""

    deployment: Deployment
    now: datetime
    image: str  # the worker image in use
    revision: str  # of the pods that are wanted
    pods: tuple[Pod, ...] = ()
    workers: Mapping[str, Worker] = field(default_factory=dict)  # by pod name; absent = no answer that counts
    unreachable: Mapping[str, str] = field(default_factory=dict)  # by pod name: why it did not answer
    refusals: Mapping[str, str] = field(default_factory=dict)  # by pod name: why the last action on it failed
    forbidden: str = ""  # the API server's words about the right that the last pass lacked, verb and resource in them
    service: ServiceState | None = None
    budget: BudgetState | None = None
    name_owner: str = ""  # the older deployment, as NAMESPACE/NAME, that serves under the same model name
    pod_digest: str = ""  # of the pods that are wanted: what only another pod can change
    strangers: Mapping[str, Worker] = field(
        default_factory=dict
    )  # by pod name: engines of other settings than labelled
    agreement_timeout_s: float = 10.0

    @property
    def wants_sleep(self) -> bool:
        """Tell whether the order is to sleep."""
        return self.deployment.lifecycle.desired_state == "Asleep"

    @property
    def has_replicas(self) -> bool:
        """Tell whether any pod is wanted."""
        return self.deployment.replicas > 0

    @property
    def replicas(self) -> tuple[Pod, ...]:
        """Return the pods that are wanted and there, by index."""
        wanted = [pod for pod in self.pods if self.is_wanted(pod) and not pod.is_deleting]
        return tuple(sorted(wanted, key=lambda pod: pod.index))

    def is_wanted(self, pod: Pod) -> bool:
        """Tell whether the pod belongs to this very object, and to its present revision and scale."""
        is_ours = pod.owner_uid == self.deployment.uid
        return is_ours and pod.revision == self.revision and 0 <= pod.index < self.deployment.replicas

    def worker(self, pod: Pod) -> Worker | None:
        """Return what is known of the pod's worker."""
        return self.workers.get(pod.name)

    def state(self, pod: Pod) -> WorkerState | None:
        """Return the state of the pod's worker, None if nothing is known."""
        worker = self.worker(pod)
        return worker.state if worker else None

    def is_light(self, pod: Pod) -> bool:
        """Tell whether the pod's worker sleeps less deep than the order Asleep asks for."""
        worker = self.worker(pod)
        asleep_at = worker.sleep_level if worker and worker.state is WorkerState.ASLEEP else None
        return asleep_at is not None and asleep_at < self.deployment.lifecycle.sleep_level

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
