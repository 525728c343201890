"""A pool's nouns: the places of a pool and who is on them, who asks for one, and the rules between them.

A slot is one GPU (or as many as a member's tensor ranks need), shared by the replicas that have a pod on it. At most
`awake_per_slot` of them hold memory there; the others sleep. What stands in `Slot` was written to the pool's status
before anything was told to a worker; `Tenant` is what workers and the kubelet tell now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from dormouse_operator.model.pool_device import PoolDevice, SlotPlace
from dormouse_operator.model.recorded import RecordedCondition
from dormouse_operator.model.units import GIB
from dormouse_operator.model.wanted import Key


@dataclass(frozen=True, slots=True, order=True)
class Replica:
    """One replica of a member. Its pod is bound to one slot for life."""

    key: Key
    index: int

    def __str__(self) -> str:
        """Return namespace/name[index]."""
        return f"{self.key}[{self.index}]"


class SlotPhase(StrEnum):
    """Where a slot is in handing its device on."""

    FREE = "Free"  # nobody holds it
    GRANTING = "Granting"  # `next` may take memory, and does not serve yet
    HELD = "Held"  # whoever holds it serves
    YIELDING = "Yielding"  # `leaving` gives its memory back
    FOULED = "Fouled"  # nobody can tell what is on the device: it is given to nobody


class WayOut(StrEnum):
    """How a replica leaves a device, from the gentlest on. A way that fails is followed by the next one."""

    LEVEL1 = "Level1"  # it sleeps with a copy of its weights in host memory
    LEVEL2 = "Level2"  # it sleeps without
    STANDBY = "Standby"  # its engine process is ended: the kernel takes the memory back
    POD = "Pod"  # its pod is deleted

    @property
    def depth(self) -> int:
        """Return 0 for the gentlest, more the deeper."""
        return list(WayOut).index(self)


class TenantState(StrEnum):
    """What a replica does on its slot, as far as memory of the device goes."""

    ABSENT = "Absent"  # no pod, or none with a running container: nothing of it is on the device
    STANDBY = "Standby"  # a front and no engine process: nothing of it is on the device
    ASLEEP = "Asleep"  # level 1 or 2: the residue alone
    RISING = "Rising"  # its engine starts, loads, allocates or wakes
    SERVING = "Serving"
    DRAINING = "Draining"
    FAILED = "Failed"  # it gave up, and may hold anything
    SILENT = "Silent"  # there is a pod, and its worker does not answer


TAKES_MEMORY = frozenset({TenantState.RISING, TenantState.SERVING, TenantState.DRAINING, TenantState.FAILED})
AT_REST = frozenset({TenantState.ASLEEP, TenantState.STANDBY})


@dataclass(frozen=True, slots=True)
class Holding:
    """A replica that may have memory of the device, and since when it serves there."""

    replica: Replica
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A replica that was given the device and did not come to serve: it waits longer each time."""

    replica: Replica
    times: int
    at: datetime
    reason: str
    missing_bytes: int = 0  # as the worker said; 0 = it was not for memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleeper:
    """What a replica that sleeps on a slot leaves on its device."""

    replica: Replica
    level: int
    residual_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One slot as it was recorded last. The epoch rises with each change, and goes with each command."""

    name: str
    since: datetime  # of the phase; of the way out while somebody leaves
    phase: SlotPhase = SlotPhase.FREE
    holders: tuple[Holding, ...] = ()  # who may have memory, without `next`; with who is leaving
    leaving: Replica | None = None  # in Fouled: whose pod has to go first
    next: Replica | None = None  # in Yielding for whom it leaves, None = for nobody
    way_out: WayOut = WayOut.LEVEL1  # of the one that leaves
    deepening: tuple[Replica, ...] = ()  # in Granting: sleepers whose residue has to go, so that `next` fits
    epoch: int = 0
    refusals: tuple[Refusal, ...] = ()
    sleepers: tuple[Sleeper, ...] = ()

    def __post_init__(self) -> None:
        held = [holding.replica for holding in self.holders]
        assert len(held) == len(set(held)), f"{self.name}: somebody holds it twice"
        assert self.next not in held, f"{self.name}: {self.next} holds it already"
        assert self.leaving is None or self.leaving in held, f"{self.name}: {self.leaving} leaves and does not hold it"
        assert (self.leaving is not None) == (self.phase is SlotPhase.YIELDING) or self.phase is SlotPhase.FOULED
        assert self.next is None or self.phase in {SlotPhase.YIELDING, SlotPhase.GRANTING}
        assert self.next is not None or self.phase is not SlotPhase.GRANTING
        assert (self.phase is not SlotPhase.FREE) or not held
        assert (self.phase is not SlotPhase.HELD) or held

    @property
    def is_settled(self) -> bool:
        """Return whether nothing is under way."""
        return self.phase in {SlotPhase.FREE, SlotPhase.HELD}

    @property
    def may_hold(self) -> tuple[Replica, ...]:
        """Return whoever may have memory of the device now."""
        granted = (self.next,) if self.next and self.phase is SlotPhase.GRANTING else ()
        return (*(holding.replica for holding in self.holders), *granted)

    def refusal_of(self, replica: Replica) -> Refusal | None:
        """Return what became of its last grants, None if the last one was good."""
        return next((found for found in self.refusals if found.replica == replica), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A replica on its slot as it is observed; where one of its pods still goes, the pod that may hold more."""

    replica: Replica
    state: TenantState
    instance: str = ""  # of its container: one that restarts is another, and knows of no epoch
    gate_open: bool = False
    running_requests: int = 0
    request_counter: int = 0
    residual_bytes: int = 0  # asleep; 0 where there is nothing
    grant_epoch: int = 0  # of the grant that it has; 0 = none
    refused_epoch: int = 0  # at which it refused its last sleep or wake; 0 = it did not
    missing_bytes: int = 0  # of the device, as a refused wake told
    engine_failed: datetime | None = None  # when its last engine ended though nobody asked
    is_oversized: bool = False  # its engine was started within more than it may take now, or without a bound
    silent_s: float = 0.0  # for how long it has not answered
    is_deleting: bool = False  # its pod is
    has_lost_node: bool = False  # nobody is there to end it
    is_short: bool = False  # it gave memory of its node back while it slept, and has not all of it again

    @property
    def takes_memory(self) -> bool:
        """Return whether it may have more of the device than a sleeper."""
        return self.state in TAKES_MEMORY


class Place(NamedTuple):
    """Where a member can be woken, and how long it takes there, as measured last. Without a running pod it cannot."""

    replica: Replica
    slot: str
    wake_s: float = 1.0  # from as deep as it sleeps now, or would sleep
    sleep_s: float = 0.0  # once it is drained


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a member asks for, and what it costs to give it that."""

    key: Key
    places: tuple[Place, ...]
    wanted: int = 0  # replicas that should be awake, by the requests that are held or run; 0 = it is idle
    waiting_since: datetime | None = None  # from when on fewer were awake than wanted; None = it does not wait
    quiet_s: float = 0.0  # since a request was last known
    priority: int = 0
    weight: float = 1.0

    @property
    def is_idle(self) -> bool:
        """Return whether nobody calls it."""
        return self.wanted == 0


Order = Literal["Fair", "Priority"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPolicy:
    """The rules of a pool. Defaults were chosen with `python -m bench pools`, see decision 50."""

    order: Order = "Fair"  # who is next: by weighted waiting, or by priority that rises with waiting
    min_active_s: float = 20.0  # a busy replica of weight 1 serves at least so long
    patience_s: float = 2.0  # so long a member waits before a busy one has to leave for it
    drain_s: float = 5.0  # for requests to end or to move; then they are ended, and gateways hold their streams
    aging_s: float = 30.0  # waiting so long is worth one priority
    max_switching_share: float = 0.1  # of a busy replica's turn: switches that take long make turns long
    starving_s: float = 120.0  # who waits longer is named in the pool's condition
    awake_per_slot: int = 1
    max_members_per_slot: int = 8
    sleeper_reserve_bytes: int = GIB  # of the device, for each sleeper's residue
    first_backoff_s: float = 5.0  # after a wake that failed; doubles with each
    max_backoff_s: float = 300.0
    sleep_s: float = 30.0  # for a drained replica to fall asleep
    standby_s: float = 15.0  # for an engine process to end
    pod_gone_s: float = 60.0  # for a pod to go
    silent_s: float = 15.0  # without an answer, after which a worker counts as dead
    memory_s: float = 15.0  # for a node to give back the memory that a sleeper had returned
    wake_s: float = 600.0  # for a replica to serve once it was given the device; an engine may have to start

    @property
    def residue_limit_bytes(self) -> int:
        """Return how much all that sleep on a slot may leave on its device."""
        return self.max_members_per_slot * self.sleeper_reserve_bytes

    def turn_s(self, weight: float, switch_s: float) -> float:
        """Return how long a busy replica may stay, where giving the device on takes `switch_s`."""
        worth_it_s = switch_s * (1.0 - self.max_switching_share) / self.max_switching_share
        return max(self.min_active_s * weight, worth_it_s)

    def backoff(self, refusal: Refusal) -> timedelta:
        """Return for how long a replica is not woken after it refused."""
        doublings = min(refusal.times - 1, 30)
        return timedelta(seconds=min(self.max_backoff_s, self.first_backoff_s * 2**doublings))


@dataclass(frozen=True, slots=True)
class Idleness:
    """Since when nobody of a pool is awake, nor called; and since when it has no pods for that."""

    since: datetime | None = None  # None = somebody is, or `release_after_s` is not set
    released_since: datetime | None = None  # None = members have their pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A GpuPool: the user's spec and the status that the operator wrote last."""

    key: Key
    uid: str
    generation: int
    device: PoolDevice
    num_slots: int
    gpus_per_slot: int = 1
    policy: PoolPolicy = PoolPolicy()
    release_after_s: int = 0  # that nobody is awake, after which members' pods go; 0 = never
    is_deleting: bool = False
    slots: tuple[Slot, ...] = ()  # as recorded, also those above `num_slots` that are still there
    reserved: Mapping[str, SlotPlace] = field(default_factory=dict)  # by slot, as recorded: where pods reserve devices
    waiting: Mapping[str, datetime] = field(default_factory=dict)  # by name of the member: since when
    idleness: Idleness = Idleness()
    device_bytes: int = 0  # memory of the smallest device that was measured here; 0 = none was
    conditions: Mapping[str, RecordedCondition] = field(default_factory=dict)
    queue_labels: Mapping[str, str] = field(default_factory=dict)  # for the pods that reserve its devices
    raw: Mapping[str, Any] = field(default_factory=dict)  # the status, to know whether a new one differs

    @property
    def is_released(self) -> bool:
        """Return whether its members have no pods, so that its GPUs are the cluster's, until somebody calls."""
        return self.idleness.released_since is not None and not self.is_deleting

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Return the slots that are wanted; each has a ResourceClaim of its name."""
        return tuple(f"{self.key.name}-{index}" for index in range(self.num_slots))

    @property
    def open_slots(self) -> tuple[str, ...]:
        """Return the slots that can have new pods: where pods reserve devices, it has to be known which these are."""
        if not self.device.reservation:
            return self.slot_names
        return tuple(name for name in self.slot_names if name in self.reserved)


Demands = Mapping[Key, Demand]
Tenants = Mapping[Replica, Tenant]
