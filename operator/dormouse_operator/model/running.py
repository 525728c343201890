"""What runs: pods as the kubelet sees them, workers as they tell of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from dormouse_operator.model.ladder import SLEEP_LEVELS, SleepLevel


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
    STANDBY = "STANDBY"


AWAKE = frozenset({WorkerState.READY, WorkerState.DRAINING})  # with a cache
AT_REST = frozenset({WorkerState.ASLEEP, WorkerState.STANDBY})  # a wake brings it back
WAKEABLE = AWAKE | AT_REST  # or can have it back


FORMED = "GroupFormed"  # reason of the gate of a leader whose pods were all there once; it never opened yet
CRASH_LOOP = "CrashLoopBackOff"
UNMADE = "nobody"  # in place of the owner's UID: the pod says it is ours, and no operator made it


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
    ended: datetime | None = None  # when that was


@dataclass(frozen=True, slots=True)
class Download:
    """How far an init container is that fetches a model."""

    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMemory:
    """How much of its node's memory a worker asks for, and has."""

    full_bytes: int = 0  # as its pod was made; 0 = nobody said, and it is left as it is
    requested_bytes: int = 0  # by the pod's spec
    allocated_bytes: int = 0  # by its node; 0 = its kubelet cannot change it while the pod lives
    is_guaranteed: bool = False  # a change would put the pod into another class of service, which is forbidden
    complaint: str = ""  # why the kubelet does not give what is asked for

    @property
    def can_change(self) -> bool:
        """Return whether the request can be lowered and raised."""
        return bool(self.full_bytes and self.allocated_bytes) and not self.is_guaranteed

    @property
    def is_short(self) -> bool:
        """Return whether it has less than it needs awake."""
        return self.can_change and min(self.requested_bytes, self.allocated_bytes) < self.full_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One worker pod; of a replica of several pods the leader, or a follower."""

    name: str
    uid: str
    index: int
    revision: str
    owner_uid: str
    pod_digest: str = ""  # of what only another pod can change
    image: str = ""
    operator_key: str = ""  # public, by which its worker knows the operator; "" = made before there were any
    seal: str = ""  # by which an operator knows that one made it; whatever the annotation says
    created: datetime | None = None
    ip: str = ""
    is_scheduled: bool = False
    node: str = ""  # "" = it has none yet
    queue: str = ""  # of Kueue, which lets it start; "" = none
    scheduling_gates: tuple[str, ...] = ()  # by name: as long as there are some, no node is looked for
    unscheduled_message: str = ""  # the scheduler's words
    has_ended: bool = False  # phase Failed or Succeeded: it will never run again
    end_message: str = ""
    is_deleting: bool = False
    ends_by: datetime | None = None  # when it should be gone if it is being deleted
    has_lost_node: bool = False  # it is being deleted as its node is tainted: nobody may be there to end it
    has_tainted_device: bool = False  # it is being deleted as a device of its claim is tainted
    is_ready: bool = False
    ready_since: datetime | None = None  # when the kubelet last changed its mind about that
    gate_open: bool = False
    gate_reason: str = ""  # "" = the gate was never written
    gate_since: datetime | None = None  # when it last opened or closed
    container: Container = Container()
    downloader: Container = Container()  # the init container that fetches a model of a hub; never there without one
    num_ranks: int = 1  # of the replica
    group_size: int = 1  # pods of the replica
    ordinal: int = 0  # within the group; 0 leads
    leader_uid: str = ""  # of a follower: the very pod that it was made for
    memory: PodMemory = PodMemory()
    model_volume: str = ""  # which kind of volume holds its model of a claim or an image; "" = there is none
    claims: tuple[str, ...] = ()  # names of the ResourceClaims that it has devices of
    pool: str = ""  # of a pool's member: the GpuPool
    slot: str = ""  # beside it: the slot that it is on for life
    # which of a node's devices it sees, where it asks the cluster for none: as its slot's reservation told
    reserved_devices: tuple[str, ...] = ()

    @property
    def can_be_asked(self) -> bool:
        """Return whether a worker may answer there."""
        return bool(self.ip) and self.container.is_running and not self.is_deleting

    @property
    def is_downloading(self) -> bool:
        """Return whether an init container fetches the model there, and may say how far it is."""
        return bool(self.ip) and self.downloader.is_running and not self.is_deleting

    @property
    def waits_for_volumes(self) -> bool:
        """Return whether it has a node and no address there: the kubelet brings what it mounts, or its network."""
        return self.is_scheduled and not (self.ip or self.is_deleting or self.has_ended)

    @property
    def has_opened(self) -> bool:
        """Return whether its gate was ever open: else no request reached it."""
        return self.gate_reason not in {"", FORMED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker measured."""

    rank: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    block_size: int
    block_bytes: int = 0
    total_bytes: int = 0
    max_model_len: int = 0
    device: str = ""
    limited_by: str = ""
    has_cache: bool = True  # False: its model keeps none, and 0 blocks are what it needs


@dataclass(frozen=True, slots=True)
class Condemnation:
    """Why a pod takes no command, nor ever will: another one takes its place."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a worker failed, in its own words."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGrant:
    """The right to use the device of a pool's slot, as the worker has it."""

    slot: str
    slot_epoch: int
    budget_bytes: int = 0  # 0 = as its settings say
    device: str = ""  # "" = any
    # for others, and among how many the rest is divided: bounds an engine that measures its device first
    reserved_bytes: int = 0
    awake_per_slot: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What a worker says of itself, or what is known of one at rest."""

    state: WorkerState
    pod_uid: str
    settings_digest: str
    epoch: int = 0
    running_requests: int = 0
    report: Report | None = None
    rank_reports: tuple[Report, ...] = ()  # of all ranks, where there are several
    num_gpu_blocks: int = 0
    num_cpu_blocks: int = 0
    residual_bytes: int = 0  # of all its ranks
    freed_bytes: int = 0
    host_copy_bytes: int = 0  # host memory that keeps weights or cache for a fast wake
    failure: Failure | None = None
    engine_failures: int = 0  # engines that ended though nobody asked, since its container started
    last_engine_failure: Failure | None = None
    engine_failed: datetime | None = None  # when the last one ended
    last_sleep_s: float = 0.0
    last_wake_s: float = 0.0
    sleep_level: int = 0  # 0 = awake
    request_counter: int = 0  # requests accepted since its start
    swapping_to: str = ""  # settings digest of the engine that starts beside this one
    instance: str = ""  # of its container: one that restarts is another
    grant: DeviceGrant | None = None  # of a pool's slot
    needs_grant: bool = False  # it uses the device under a grant only
    refused_slot_epoch: int = 0  # in force when it last refused a sleep or a wake; 0 = it did not
    missing_bytes: int = 0  # of the device, as its last refused wake said
    adapters_digest: str = ""  # what the adapters are called that it was told last; "" = none, or it was not told
    adapters_version: int = 0  # counts changes of its adapters
    sleep_levels: tuple[SleepLevel, ...] = SLEEP_LEVELS  # that it claims; all of a worker that claims nothing at all
    download: Download | None = None  # set by the init container that answers in its place before it starts
    is_at_rest: bool = False  # not asked: taken from the recorded status
