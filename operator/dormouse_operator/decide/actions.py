"""What the operator can do: each action is one idempotent effect. Nouns only; `execute` carries them out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dormouse_operator.model import Pod, SleepLevel
from dormouse_operator.model.adapters import Adapter

POLL_S = 0.5  # while a worker changes by itself


@dataclass(frozen=True, slots=True)
class ApplyService:
    """Make the Service what it should be."""


@dataclass(frozen=True, slots=True)
class ApplyRanksService:
    """Make the Service under which the pods of groups find each other what it should be."""


@dataclass(frozen=True, slots=True)
class ApplyDisruptionBudget:
    """Make the PodDisruptionBudget what it should be."""


@dataclass(frozen=True, slots=True)
class DeleteDisruptionBudget:
    """Delete exactly this PodDisruptionBudget."""

    uid: str


@dataclass(frozen=True, slots=True)
class ApplyNetworkPolicy:
    """Make the NetworkPolicy what it should be."""


@dataclass(frozen=True, slots=True)
class DeleteNetworkPolicy:
    """Delete exactly this NetworkPolicy."""

    uid: str


@dataclass(frozen=True, slots=True)
class ApplyInferencePool:
    """Make the InferencePool, and the Service that leads to the picker, what they should be."""


@dataclass(frozen=True, slots=True)
class DeleteInferencePool:
    """Delete exactly this InferencePool."""

    uid: str


@dataclass(frozen=True, slots=True)
class ApplyPrePull:
    """Make the DaemonSet that has the model on nodes what it should be."""


@dataclass(frozen=True, slots=True)
class DeletePrePull:
    """Delete exactly this DaemonSet."""

    uid: str


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create the pod of a replica, and before it the claim that keeps its hub's model, if that is ours to make."""

    index: int
    is_parked: bool = False  # it starts in STANDBY, and waits to be woken


@dataclass(frozen=True, slots=True)
class CreateFollower:
    """Create a pod of the group of this leader."""

    leader: Pod
    ordinal: int


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete exactly this pod."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class RemovePod:
    """Drain a worker and, once it is idle or must not wait any longer, delete its pod."""

    pod: Pod
    must_end: bool  # the time for draining is over


@dataclass(frozen=True, slots=True)
class SwapEngine:
    """Drain a worker and, once it is idle or must not wait any longer, have it start the wanted engine instead."""

    pod: Pod
    must_end: bool  # the time for draining is over: end what still runs


@dataclass(frozen=True, slots=True)
class Relabel:
    """Have the pod's label say of which revision its engine is."""

    pod: Pod
    revision: str


@dataclass(frozen=True, slots=True)
class ResizeMemory:
    """Have a pod ask for so much memory of its node, while it lives."""

    pod: Pod
    num_bytes: int


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
class Drain:
    """Have a worker refuse new requests, and wait a moment for the running ones."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class EndRequests:
    """Have a worker refuse new requests and end the running ones."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PutToSleep:
    """Put workers to sleep in two phases: if one of them refuses the first, all stay awake."""

    pods: tuple[Pod, ...]
    level: SleepLevel
    must_abort: bool  # the time for draining is over: end what still runs
    request_counters: Mapping[str, int] = field(default_factory=dict)  # by pod name: one more request, and none sleeps


@dataclass(frozen=True, slots=True)
class WakeUp:
    """Wake the workers of one replica in two phases, or end their draining."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class SetAdapters:
    """Tell a worker which adapters there shall be, and no others; it loads them beside what it does."""

    pod: Pod
    adapters: tuple[Adapter, ...]
    digest: str  # what this set is called


ReplicaAction = SetGate | InitializeCache | Drain | EndRequests | PutToSleep | WakeUp
ClusterAction = (
    ApplyService
    | ApplyRanksService
    | ApplyDisruptionBudget
    | DeleteDisruptionBudget
    | ApplyNetworkPolicy
    | DeleteNetworkPolicy
    | ApplyInferencePool
    | DeleteInferencePool
    | ApplyPrePull
    | DeletePrePull
    | CreatePod
    | CreateFollower
    | DeletePod
    | Relabel
    | ResizeMemory
    | SetGate
)
WorkerAction = InitializeCache | Drain | EndRequests | PutToSleep | WakeUp | SwapEngine | SetAdapters
Action = ClusterAction | WorkerAction | RemovePod


def pods_of(action: Action) -> tuple[Pod, ...]:
    """Return the pods that an action is about; one that is still to be created is none."""
    match action:
        case ApplyService() | ApplyRanksService() | ApplyDisruptionBudget() | DeleteDisruptionBudget():
            return ()
        case ApplyNetworkPolicy() | DeleteNetworkPolicy() | ApplyInferencePool() | DeleteInferencePool():
            return ()
        case ApplyPrePull() | DeletePrePull() | CreatePod() | CreateFollower():
            return ()
        case PutToSleep(pods) | WakeUp(pods):
            return pods
        case _:
            return (action.pod,)


@dataclass(frozen=True, slots=True)
class Requeue:
    """When to look again even if nothing changes."""

    polls: bool = False  # a worker changes by itself
    due_s: float | None = None  # until something is over by the clock; 0 = it is

    def after_s(self, poll_s: float) -> float | None:
        """Return after how many seconds, where a poll is due after `poll_s`; None: never.

        What is over and waits for a worker is looked at as often as a worker that tells nothing, and not all the time.
        """
        if not self.polls:
            return self.due_s
        return poll_s if self.due_s is None else min(poll_s, max(self.due_s, POLL_S))


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions of this pass, and when to make the next."""

    actions: tuple[Action, ...] = ()
    requeue: Requeue = Requeue()
