"""What a slot's next step may be: a write to the pool's status, one command, or waiting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from dormouse_operator.model.pools import AT_REST, Replica, Slot, Tenant


@dataclass(frozen=True, slots=True)
class Write:
    """Write the slot to the pool's status; nothing else before that is done."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again when something is observed, at the latest then (None: time alone changes nothing)."""

    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class SetGate:
    """Open or shut the readiness gate of a replica's pod."""

    replica: Replica
    is_open: bool


@dataclass(frozen=True, slots=True)
class Drain:
    """Have a worker refuse new requests; streams that can, move to another replica."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class Sleep:
    """Put a worker to sleep in two phases. It refuses if it has taken a request in since."""

    replica: Replica
    level: int  # 1, 2, or 3 for STANDBY
    epoch: int
    request_counter: int
    must_abort: bool = False  # the time for draining is over: end what still runs


@dataclass(frozen=True, slots=True)
class EndEngine:
    """Have a worker go to STANDBY: it ends its engine process, by force if that does not end by itself."""

    replica: Replica
    epoch: int


@dataclass(frozen=True, slots=True)
class RevokeDevice:
    """Take the grant from a worker that sleeps."""

    replica: Replica
    epoch: int


@dataclass(frozen=True, slots=True)
class GrantDevice:
    """Allow a worker to take memory of the slot's device.

    Only the instance that was observed: one that has restarted knows no epoch, and would believe a late command.
    """

    replica: Replica
    epoch: int
    instance: str


@dataclass(frozen=True, slots=True)
class WakeUp:
    """Have a worker reserve its memory and wake, or start its engine if it has none."""

    replica: Replica
    epoch: int


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete the pod of a replica."""

    replica: Replica


PodCommand = SetGate | Drain | Sleep | EndEngine | RevokeDevice | GrantDevice | WakeUp | DeletePod
Step = Write | Wait | PodCommand


def goes_on(running: PodCommand, command: PodCommand) -> bool:
    """Return whether a command under way is still what is to be done.

    A sleep is, though its worker has counted one more request: it took in what was on its way, and waits for its end.
    """
    if isinstance(running, Sleep) and isinstance(command, Sleep):
        return replace(running, request_counter=command.request_counter) == command
    return running == command


def following(command: PodCommand, tenant: Tenant) -> PodCommand | None:
    """Return what is told a worker next if it does this, whatever else is seen of it; None if that has to be seen.

    It saves a look at everything between two steps of a switch.
    """
    if isinstance(command, Sleep):
        return RevokeDevice(command.replica, command.epoch)
    if isinstance(command, GrantDevice) and tenant.state in AT_REST:
        return WakeUp(command.replica, command.epoch)
    return None
