"""What to do next: Observed → actions. Pure, stores nothing; after a crash it gives the same answer.

Each pass plans at most one step per replica, and every step can be repeated without harm:

    no pod:          create → (it loads and profiles) → the count is agreed → initialise the cache → open the gate
    order to sleep:  close the gate → drain and sleep
    order to wake:   wake up → open the gate

What makes it hard: (1) a worker that serves must not lose its requests because a newcomer reported less: such workers
are taken out of the Service one at a time, and re-initialised when idle. (2) names of pods are deterministic, so a new
pod has to wait until its predecessor is gone. (3) whoever sleeps holds no cache, yet its count still binds the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from dormouse_operator import capacity
from dormouse_operator.capacity import Agreement
from dormouse_operator.conditions.accepted import rejection
from dormouse_operator.manifests import pod_name
from dormouse_operator.model import Observed, Pod, WorkerState

POLL_S = 0.5  # while a worker changes by itself
_CHANGING = {
    WorkerState.STARTING,
    WorkerState.LOADING,
    WorkerState.INITIALIZING,
    WorkerState.DRAINING,
    WorkerState.WAKING,
}


@dataclass(frozen=True, slots=True)
class ApplyService:
    """Make the Service what it should be."""


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create the pod of a replica."""

    index: int


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete exactly this pod."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class SetGate:
    """Open or close the readiness gate of a pod."""

    pod: Pod
    is_open: bool
    reason: str


@dataclass(frozen=True, slots=True)
class InitializeCache:
    """Have a worker allocate the agreed counts."""

    pod: Pod
    num_gpu_blocks: int
    num_cpu_blocks: int


@dataclass(frozen=True, slots=True)
class PutToSleep:
    """Drain a worker and, once it is idle or must not wait any longer, put it to sleep."""

    pod: Pod
    must_abort: bool  # the time for draining is over: end what still runs


@dataclass(frozen=True, slots=True)
class WakeUp:
    """Wake a worker, or end its draining."""

    pod: Pod


ReplicaAction = SetGate | InitializeCache | PutToSleep | WakeUp
Action = ApplyService | CreatePod | DeletePod | ReplicaAction


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions of this pass, and after how many seconds to look again even if nothing changes (None: never)."""

    actions: tuple[Action, ...] = ()
    requeue_after_s: float | None = None


def plan(observed: Observed) -> Plan:
    """Return what to do now. A deployment that is not accepted, or is being deleted, is left as it is."""
    if observed.deployment.is_deleting or rejection(observed):
        return Plan()
    agreement = capacity.agree(observed)
    actions: list[Action] = [*_service(observed), *_removals(observed), *_creations(observed)]
    for pod in observed.replicas:
        step = next_step(observed, pod, agreement)
        actions += [step] if step else []
    return Plan(tuple(actions), _requeue_after_s(observed, agreement))


def next_step(observed: Observed, pod: Pod, agreement: Agreement | None) -> ReplicaAction | None:
    """Return the one next step of a replica, None if it has to wait or is where it should be."""
    state = observed.state(pod)
    if state is None or pod.has_ended:
        return None
    if pod.gate_open and (state is not WorkerState.READY or observed.wants_sleep):
        return SetGate(pod, is_open=False, reason="GoingToSleep" if observed.wants_sleep else _camel(state))
    if state is WorkerState.PROFILED:
        return _initialize(pod, agreement)
    if observed.wants_sleep:
        return _towards_sleep(observed, pod, state)
    return _towards_service(observed, pod, agreement)


def _initialize(pod: Pod, agreement: Agreement | None) -> InitializeCache | None:
    if agreement is None:
        return None
    return InitializeCache(pod, agreement.num_gpu_blocks, agreement.num_cpu_blocks)


def _towards_sleep(observed: Observed, pod: Pod, state: WorkerState) -> PutToSleep | None:
    if state not in {WorkerState.READY, WorkerState.DRAINING}:
        return None
    limit_s = observed.deployment.lifecycle.drain_timeout_s
    is_late = pod.gate_since is not None and observed.now >= pod.gate_since + timedelta(seconds=limit_s)
    return PutToSleep(pod, must_abort=is_late)


def _towards_service(observed: Observed, pod: Pod, agreement: Agreement | None) -> ReplicaAction | None:
    state = observed.state(pod)
    if state in {WorkerState.ASLEEP, WorkerState.DRAINING}:
        return WakeUp(pod)
    if state is not WorkerState.READY or agreement is None:
        return None
    if observed.allocated_gpu_blocks(pod) != agreement.num_gpu_blocks:
        return _reinitialize(observed, pod, agreement)
    return None if pod.gate_open else SetGate(pod, is_open=True, reason="CacheAllocated")


def _reinitialize(observed: Observed, pod: Pod, agreement: Agreement) -> ReplicaAction | None:
    """Take a serving worker with another count out of the Service, then re-initialise it; one at a time."""
    if pod is not _first_in_turn(observed, agreement):
        return None
    if pod.gate_open:
        return SetGate(pod, is_open=False, reason="Reallocating")
    return _initialize(pod, agreement)


def _first_in_turn(observed: Observed, agreement: Agreement) -> Pod:
    """Return which of the workers with another count goes first: one that is out already, else the lowest index."""
    others = [
        pod
        for pod in observed.replicas
        if observed.state(pod) is WorkerState.READY and observed.allocated_gpu_blocks(pod) != agreement.num_gpu_blocks
    ]
    return min(others, key=lambda pod: (pod.gate_open, pod.index))


def _service(observed: Observed) -> list[Action]:
    return [] if observed.service and observed.service.is_current else [ApplyService()]


def _removals(observed: Observed) -> list[Action]:
    """Return the pods that nobody wants, and those that ended and will never run again (evicted, for example)."""
    gone = [pod for pod in observed.pods if not observed.is_wanted(pod) or pod.has_ended]
    return [DeletePod(pod) for pod in gone if not pod.is_deleting]


def _creations(observed: Observed) -> list[Action]:
    taken = {pod.name for pod in observed.pods}
    name, revision = observed.deployment.key.name, observed.revision
    missing = (i for i in range(observed.deployment.replicas) if pod_name(name, revision, i) not in taken)
    return [CreatePod(index) for index in missing]


def _requeue_after_s(observed: Observed, agreement: Agreement | None) -> float | None:
    """Return when to look again. Changes of pods are told by the watch; what a worker does by itself is not."""
    asked = [pod for pod in observed.replicas if pod.can_be_asked]
    if any(observed.state(pod) in _CHANGING or observed.state(pod) is None for pod in asked):
        return POLL_S
    ends = capacity.waiting_ends(observed)
    if agreement is None and ends is not None and capacity.reports(observed):
        return max(0.0, (ends - observed.now).total_seconds())
    return None


def _camel(state: WorkerState) -> str:
    return f"Worker{state.capitalize()}"
