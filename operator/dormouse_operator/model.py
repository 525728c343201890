"""The operator's nouns: what was read from the cluster and from workers, frozen. Pure; parsing stands in `parse`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple


class Key(NamedTuple):
    """Where an InferenceDeployment is."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Return namespace/name."""
        return f"{self.namespace}/{self.name}"


class WorkerState(StrEnum):
    """The life of a worker, as the wire contract names it."""

    STARTING = "STARTING"
    LOADING = "LOADING"
    PROFILED = "PROFILED"
    INITIALIZING = "INITIALIZING"
    READY = "READY"
    DRAINING = "DRAINING"
    ASLEEP = "ASLEEP"
    WAKING = "WAKING"
    FAILED = "FAILED"


DesiredState = Literal["Active", "Asleep"]
SLEEP_LEVEL = 2  # the only one that workers know now


# --- what the user wants ---


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the model's directory is in the worker's container, and how it comes there."""

    path: str
    claim: str | None  # the PersistentVolumeClaim to mount, None for file://
    served_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How each worker computes; None leaves the choice to the worker. Sizes in bytes."""

    device: str
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    block_size: int | None = None
    swap_space_bytes: int | None = None
    load_format: str = "auto"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """When workers serve."""

    desired_state: DesiredState
    drain_timeout_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """An InferenceDeployment: the user's spec and the status that the operator wrote last."""

    key: Key
    uid: str
    generation: int
    model: ModelSource
    image: str | None  # None: the operator chooses
    replicas: int
    engine: Engine
    lifecycle: Lifecycle
    resources: Mapping[str, Any]  # Kubernetes ResourceRequirements, passed on as they are
    recorded: RecordedStatus
    is_deleting: bool = False


# --- what the operator wrote last ---


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. Without time and generation, which the status writer adds."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    is_failure: bool = False  # False for a reason that time alone does not cure; not written to the status

    @property
    def is_true(self) -> bool:
        """Tell whether it holds."""
        return self.status == "True"


@dataclass(frozen=True, slots=True)
class RecordedCondition:
    """A condition as it stands in the status."""

    condition: Condition
    since: datetime | None  # last flip of its status


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's report as it stands in the status."""

    rank: int
    pod: str
    num_gpu_blocks: int
    num_cpu_blocks: int
    allocated_gpu_blocks: int
    gpu_uuid: str = ""
    residual_bytes: int = 0
    limited_by: str = ""


@dataclass(frozen=True, slots=True)
class KvCache:
    """What the ranks reported and what they agreed on."""

    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    limiting_rank: str
    ranks: tuple[Rank, ...]


@dataclass(frozen=True, slots=True)
class Actuation:
    """How the deployment last came to serve."""

    path: Literal["cold", "level2"]
    seconds: float
    reason: str
    time: str  # RFC 3339


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStatus:
    """The status as it was read. `raw` is kept to tell whether a new one differs."""

    observed_generation: int = 0
    phase: str = ""
    image: str | None = None
    conditions: Mapping[str, RecordedCondition] = field(default_factory=dict)
    kv_cache: KvCache | None = None
    last_actuation: Actuation | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)

    def is_true(self, condition: str) -> bool:
        """Tell whether a condition was True."""
        found = self.conditions.get(condition)
        return found is not None and found.condition.is_true

    def reason(self, condition: str) -> str:
        """Return a condition's reason, "" if it was never written."""
        found = self.conditions.get(condition)
        return found.condition.reason if found else ""

    def rank_of(self, pod: str) -> Rank | None:
        """Return what was recorded of a pod."""
        ranks = self.kv_cache.ranks if self.kv_cache else ()
        return next((rank for rank in ranks if rank.pod == pod), None)


# --- what runs ---


@dataclass(frozen=True, slots=True)
class Container:
    """The worker's container as the kubelet sees it."""

    is_running: bool = False
    is_ready: bool = False
    restart_count: int = 0
    started: datetime | None = None  # of the present run
    waiting_reason: str = ""  # ImagePullBackOff, CrashLoopBackOff, …
    waiting_message: str = ""
    exit_code: int | None = None  # of the last end; None = it never ended
    exit_reason: str = ""  # OOMKilled, Error, …
    exit_message: str = ""  # its last words


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One worker pod."""

    name: str
    uid: str
    index: int
    revision: str
    owner_uid: str
    created: datetime | None = None
    ip: str = ""
    is_scheduled: bool = False
    unscheduled_message: str = ""  # the scheduler's words
    has_ended: bool = False  # phase Failed or Succeeded: it will never run again
    end_message: str = ""
    is_deleting: bool = False
    is_ready: bool = False
    gate_open: bool = False
    gate_reason: str = ""  # "" = the gate was never written
    gate_since: datetime | None = None  # when it last opened or closed
    container: Container = Container()

    @property
    def can_be_asked(self) -> bool:
        """Tell whether a worker may answer there."""
        return bool(self.ip) and self.container.is_running and not self.is_deleting


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker measured."""

    rank: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    block_size: int
    max_model_len: int = 0
    device: str = ""
    limited_by: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a worker failed, in its own words."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What a worker says of itself, or what is known of one at rest."""

    state: WorkerState
    pod_uid: str
    settings_digest: str
    epoch: int = 0
    running_requests: int = 0
    report: Report | None = None
    num_gpu_blocks: int = 0
    num_cpu_blocks: int = 0
    residual_bytes: int = 0
    freed_bytes: int = 0
    failure: Failure | None = None
    last_sleep_s: float = 0.0
    last_wake_s: float = 0.0
    is_at_rest: bool = False  # not asked: taken from the recorded status


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The Service of the deployment's name."""

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
    service: ServiceState | None = None
    agreement_timeout_s: float = 10.0

    @property
    def wants_sleep(self) -> bool:
        """Tell whether the order is to sleep."""
        return self.deployment.lifecycle.desired_state == "Asleep"

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

    def allocated_gpu_blocks(self, pod: Pod) -> int:
        """Return the blocks that the pod holds, or would hold again after a wake."""
        worker = self.worker(pod)
        if worker is None:
            return 0
        if worker.state in {WorkerState.READY, WorkerState.DRAINING}:
            return worker.num_gpu_blocks
        rank = self.deployment.recorded.rank_of(pod.name)
        is_kept = worker.state in {WorkerState.ASLEEP, WorkerState.WAKING}
        return rank.allocated_gpu_blocks if rank and is_kept else 0
