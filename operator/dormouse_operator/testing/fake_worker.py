"""For tests: one worker with a memory, which `grpc` puts behind the real protocol. Nothing here sleeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from dormouse_operator.errors import WorkerError, WorkerRefused
from dormouse_operator.model import (
    AT_REST,
    AWAKE,
    SLEEP_LEVELS,
    DeviceGrant,
    Download,
    Failure,
    Report,
    SleepLevel,
    Worker,
    WorkerState,
)
from dormouse_operator.model.adapters import Adapter, HeldAdapter
from dormouse_operator.model.units import GIB
from dormouse_operator.testing.adapters import FakeAdapters

_UNMEASURED = {WorkerState.STARTING, WorkerState.LOADING, WorkerState.FAILED, WorkerState.STANDBY}
RISING = {WorkerState.STARTING, WorkerState.LOADING, WorkerState.PROFILED, WorkerState.INITIALIZING}


def keeps_cache(arguments: Sequence[str]) -> bool:
    """Return whether the model of a worker with these arguments keeps a cache."""
    return not {"--task=embed", "--task=classify", "--task=score"} & set(arguments)


@dataclass(slots=True)
class FakeWorker:
    """One worker: obeys the state machine of the wire contract, remembers commands, fails on order."""

    pod_uid: str
    settings_digest: str
    num_gpu_blocks: int = 2000  # what its profile will report
    has_cache: bool = True  # False: its model keeps none, and it reports 0 blocks
    state: WorkerState = WorkerState.LOADING
    starts_in_standby: bool = False  # without an engine, as a spare pod's
    first_digest: str = ""  # that of the container's arguments, if a restart goes back to it
    epoch: int = 0
    allocated: int = 0
    kept: int = 0  # the count that a wake brings back
    sleep_level: int = 0
    residual_bytes: int = GIB // 4  # what it keeps asleep
    host_copy_bytes: int = 0  # what it keeps in host memory at level 1
    missing_bytes: int = 0  # what a wake would need and has not
    running_requests: int = 0
    request_counter: int = 0  # requests accepted since its start
    failure: Failure | None = None
    engine_failures: int = 0  # since its container started
    last_engine_failure: Failure | None = None
    engine_failed: datetime | None = None
    has_report: bool = False  # in FAILED and STANDBY: whether it had measured before
    gpu_uuid: str = ""  # of its device; "" = the processor
    total_bytes: int = 0  # of its device, as it measured; 0 = it does not say
    commands: list[str] = field(default_factory=list)
    arguments: tuple[str, ...] = ()  # of the last swap
    swapping_to: str = ""  # digest of the engine that starts beside this one
    swap_failure: str = ""  # why a new engine does not start
    unwelcome: str = ""  # why it takes nobody for its operator
    refuse_next: list[WorkerError] = field(default_factory=list)  # raised by the next commands, one each
    num_ranks: int = 1
    rank_blocks: dict[int, int | None] = field(default_factory=dict)  # by rank, where it differs; None = no report
    is_whole: bool = True  # all pods of its group run
    adapters: FakeAdapters = field(default_factory=FakeAdapters)
    sleep_levels: tuple[SleepLevel, ...] = SLEEP_LEVELS  # that it claims
    download: Download | None = None  # what the init container says before it

    def __post_init__(self) -> None:
        """Begin where it starts."""
        if self.starts_in_standby:
            self.end_engine()

    def finish_loading(self) -> None:
        """Load and profile, unless a rank is missing."""
        if self.is_whole:
            self.state = WorkerState.PROFILED

    def see_group(self, *, is_whole: bool) -> None:
        """Know whether all pods of the group run; without one of them nothing goes on."""
        if self.is_whole and not is_whole and self.state is not WorkerState.FAILED:
            self.restart()
            self.running_requests = 0
        self.is_whole = is_whole

    def fail(self, reason: str, message: str, *, has_report: bool = False) -> None:
        """Enter FAILED."""
        self.state, self.failure, self.allocated = WorkerState.FAILED, Failure(reason, message), 0
        self.has_report = has_report

    def restart(self) -> None:
        """Start anew, as after a crash of the container."""
        self.state, self.failure, self.allocated, self.kept = WorkerState.LOADING, None, 0, 0
        self.epoch, self.sleep_level, self.has_report, self.request_counter = 0, 0, False, 0
        self.engine_failures, self.last_engine_failure = 0, None
        self.settings_digest = self.first_digest or self.settings_digest
        self.adapters = FakeAdapters(self.adapters.files)
        if self.starts_in_standby:
            self.end_engine()

    def lose_engine(self, reason: str, message: str, at: datetime) -> None:
        """Lose the engine, and start another in the same container."""
        self.state, self.failure, self.allocated, self.kept, self.has_report = WorkerState.LOADING, None, 0, 0, False
        self.engine_failures += 1
        self.last_engine_failure, self.engine_failed = Failure(reason, message), at

    def status(self) -> Worker:
        """Return what it says of itself."""
        is_early = self.state in _UNMEASURED
        is_asleep = self.state is WorkerState.ASLEEP
        has_report = self.has_report or not is_early
        reports = self._reports() if has_report else ()
        return Worker(
            state=self.state,
            pod_uid=self.pod_uid,
            settings_digest=self.settings_digest,
            epoch=self.epoch,
            running_requests=self.running_requests,
            report=reports[0] if reports else None,
            rank_reports=reports if self.num_ranks > 1 else (),
            num_gpu_blocks=self.allocated,
            residual_bytes=self.residual_bytes if is_asleep else 0,
            freed_bytes=GIB if is_asleep else 0,
            host_copy_bytes=self.host_copy_bytes if is_asleep and self.sleep_level == 1 else 0,
            failure=self.failure,
            engine_failures=self.engine_failures,
            last_engine_failure=self.last_engine_failure,
            engine_failed=self.engine_failed,
            last_sleep_s=0.5 if self.kept else 0.0,
            last_wake_s=0.25 if self.kept else 0.0,
            sleep_level=self.sleep_level,
            request_counter=self.request_counter,
            sleep_levels=self.sleep_levels,
            download=self.download,
            swapping_to=self.swapping_to,
            adapters_digest=self.adapters.digest,
            adapters_version=self.adapters.version(computes=self.state in AWAKE),
        )

    def _reports(self) -> tuple[Report, ...]:
        usual = self.num_gpu_blocks if self.has_cache else 0
        counts = {rank: self.rank_blocks.get(rank, usual) for rank in range(self.num_ranks)}
        return tuple(
            Report(
                rank=rank,
                num_gpu_blocks=count,
                num_cpu_blocks=0,
                block_size=16,
                total_bytes=self.total_bytes,
                device=self.gpu_uuid or "cpu",
                has_cache=self.has_cache,
            )
            for rank, count in counts.items()
            if count is not None
        )

    def initialize_cache(self, epoch: int, count: int) -> None:
        """Allocate, if the state and the number allow it."""
        self._begin("initialize_cache", epoch)
        if self.state is WorkerState.READY and self.allocated == count:
            return
        self._require(WorkerState.PROFILED, WorkerState.READY, WorkerState.DRAINING)
        most = min(report.num_gpu_blocks for report in self._reports())
        if not int(self.has_cache) <= count <= most:
            raise WorkerRefused(f"INVALID_ARGUMENT: num_gpu_blocks is {count}; reported are {most}")
        self._require_idle()
        self.state, self.allocated = WorkerState.READY, count

    def drain(self, epoch: int) -> int:
        """Refuse new requests."""
        self._begin("drain", epoch)
        self._require(WorkerState.READY, WorkerState.DRAINING)
        self.state = WorkerState.DRAINING
        return self.running_requests

    def prepare_sleep(self, epoch: int, *, level: int, abort: bool, request_counter: int | None = None) -> None:
        """Close, and be idle."""
        self._begin("abort" if abort else "prepare_sleep", epoch)
        if self.state in AT_REST or (level == 3 and self.state in RISING):
            return
        self._require(WorkerState.READY, WorkerState.DRAINING)
        if request_counter not in {None, self.request_counter}:
            words = f"request_counter is {request_counter}, this worker has accepted {self.request_counter} requests"
            raise WorkerRefused(f"FAILED_PRECONDITION: {words}")
        if abort:
            self.running_requests = 0
        self._require_idle()
        self.state = WorkerState.DRAINING

    def sleep(self, epoch: int, *, level: int, abort: bool) -> None:
        """Give the memory back."""
        self._begin(f"sleep {level}", epoch)
        if level == 3:
            self.end_engine()
            return
        if self.state is WorkerState.STANDBY:
            return
        if self.state is WorkerState.ASLEEP:
            self.sleep_level = max(self.sleep_level, level)
            return
        self._require(WorkerState.READY, WorkerState.DRAINING)
        if abort:
            self.running_requests = 0
        self._require_idle()
        self.state, self.kept, self.allocated = WorkerState.ASLEEP, self.allocated, 0
        self.sleep_level = level

    def end_engine(self) -> None:
        """Go to STANDBY, from whatever state. What was measured is still so."""
        self.has_report = self.has_report or self.state not in _UNMEASURED
        self.state, self.allocated, self.kept, self.running_requests = WorkerState.STANDBY, 0, 0, 0
        self.sleep_level, self.failure = 3, None

    def grant_device(self, epoch: int, grant: DeviceGrant, instance: str) -> None:
        """Refuse: only a worker of a pool takes a grant."""
        self._begin(f"grant {grant.slot_epoch} to {instance}", epoch)
        raise WorkerRefused("FAILED_PRECONDITION: this worker was started without --device-grants")

    def set_loras(self, epoch: int, adapters: Sequence[Adapter], digest: str) -> None:
        """Note which adapters there shall be."""
        self._begin(f"set_loras {','.join(each.name for each in adapters)}", epoch)
        self.adapters.set(adapters, digest)

    def list_loras(self) -> tuple[HeldAdapter, ...]:
        """Return them, loaded where an engine computes."""
        return self.adapters.held(computes=self.state in AWAKE)

    def revoke_device(self, epoch: int, slot_epoch: int) -> None:
        """Refuse, too."""
        self._begin(f"revoke {slot_epoch}", epoch)
        raise WorkerRefused("FAILED_PRECONDITION: this worker was started without --device-grants")

    def prepare_wake_up(self, epoch: int) -> None:
        """Reserve the memory."""
        self._begin("prepare_wake_up", epoch)
        self._require(WorkerState.ASLEEP, WorkerState.READY, WorkerState.STANDBY, *RISING)

    def wake_up(self, epoch: int) -> None:
        """Bring the memory back, or end a drain."""
        self._begin("wake_up", epoch)
        self.sleep_level = 0
        if self.state is WorkerState.STANDBY:
            self.state, self.has_report = WorkerState.LOADING, False
            return
        if self.state in {WorkerState.READY, *RISING}:
            return
        self._require(WorkerState.ASLEEP, WorkerState.DRAINING)
        if self.state is WorkerState.ASLEEP:
            self.allocated = self.kept
        self.state = WorkerState.READY

    def swap_engine(self, epoch: int, digest: str, arguments: Sequence[str]) -> None:
        """Start another engine in the place of this one, or fail to and serve on as before."""
        self._begin("swap_engine", epoch)
        if self.settings_digest == digest:
            self.swapping_to = ""  # taken back
            return
        self._require(WorkerState.READY, WorkerState.DRAINING, WorkerState.ASLEEP)
        self._require_idle()
        if self.swap_failure:
            self.state = WorkerState.READY if self.state is WorkerState.DRAINING else self.state
            raise WorkerRefused(f"FAILED_PRECONDITION: {self.swap_failure}; the old engine serves again")
        self.state, self.settings_digest, self.arguments = WorkerState.PROFILED, digest, tuple(arguments)
        self.allocated = self.kept = 0
        self.has_cache = keeps_cache(arguments)

    def _begin(self, command: str, epoch: int) -> None:
        self.commands.append(command)
        if self.refuse_next:
            raise self.refuse_next.pop(0)
        if epoch < self.epoch:
            raise WorkerRefused(f"FAILED_PRECONDITION: epoch {epoch} is older than {self.epoch}")
        self.epoch = epoch

    def _require(self, *states: WorkerState) -> None:
        if self.state not in states:
            raise WorkerRefused(f"FAILED_PRECONDITION: needs {' or '.join(states)}; the worker is {self.state}")

    def _require_idle(self) -> None:
        if self.running_requests:
            raise WorkerRefused(f"FAILED_PRECONDITION: {self.running_requests} requests are unfinished")
