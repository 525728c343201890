"""What people ask of a pool: the resource, read once into values. Pure.

Every field may be missing: an operator that is older or newer than this command line writes another status.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dormouse_cli.view import ConditionView, PoolTold, Raw, read_condition

STANDBY = 3  # the sleep level without an engine process
_BAD = {"Allocated": "False", "Fouled": "True", "Starving": "True"}  # condition → with which status somebody has to act


@dataclass(frozen=True, slots=True)
class HolderView:
    """A replica that may have memory of a slot's devices."""

    replica: str  # NAME[INDEX]
    since: str  # RFC 3339


@dataclass(frozen=True, slots=True)
class SleeperView:
    """A replica that sleeps on a slot."""

    replica: str
    level: int  # 1, 2; 3 = STANDBY, without an engine process
    residual_bytes: int  # what it leaves on the devices


@dataclass(frozen=True, slots=True)
class RefusalView:
    """A replica that was given the slot and did not come to serve."""

    replica: str
    times: int
    at: str  # RFC 3339, of the last time
    reason: str
    missing_bytes: int  # 0 = it was not for memory


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot."""

    name: str
    phase: str
    since: str
    epoch: int
    node: str  # "" while nothing is allocated, as devices
    devices: tuple[str, ...]
    holders: tuple[HolderView, ...]
    leaving: str  # "" = nobody
    next: str  # "" = nobody
    way_out: str  # of the one that leaves
    deepening: tuple[str, ...]
    sleepers: tuple[SleeperView, ...]
    refusals: tuple[RefusalView, ...]


@dataclass(frozen=True, slots=True)
class WaiterView:
    """A member that wants more replicas awake than are."""

    name: str
    since: str
    wanted: int | None


@dataclass(frozen=True, slots=True)
class PoolView:
    """One GpuPool."""

    namespace: str
    name: str
    num_slots: int  # wanted
    gpus_per_slot: int
    held: int | None  # None: the operator has not looked yet, as members
    members: int | None
    is_released: bool  # members have no pods until somebody calls: the GPUs are the cluster's
    is_current: bool  # the status is about the present spec
    slots: tuple[SlotView, ...]
    waiting: tuple[WaiterView, ...]
    conditions: tuple[ConditionView, ...]

    @property
    def full_name(self) -> str:
        """Return namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def problems(self) -> tuple[ConditionView, ...]:
        """Return the conditions that ask for somebody."""
        return tuple(one for one in self.conditions if is_bad(one))


def is_bad(condition: ConditionView) -> bool:
    """Return whether a pool's condition asks for somebody."""
    return _BAD.get(condition.type) == condition.status


def told_of(view: PoolView, member: str) -> PoolTold:
    """Return what the pool says of a member: where each of its replicas is in taking turns, and since when it waits."""
    of_slots = (turn for slot in view.slots for turn in _turns(slot))
    turns = {replica: word for replica, word in of_slots if replica.startswith(f"{member}[")}
    waits = (one.since for one in view.waiting if one.name == member)
    numbers = {replica.partition("[")[2].rstrip("]"): word for replica, word in turns.items()}
    return PoolTold(numbers, next(waits, ""))


def _turns(slot: SlotView) -> Iterator[tuple[str, str]]:
    """Yield the replicas of a slot, each with its part in it; of two words for one the later counts."""
    for sleeper in slot.sleepers:
        if sleeper.level:
            yield sleeper.replica, "Standby" if sleeper.level == STANDBY else f"Level{sleeper.level}"
    yield from ((one.replica, "Held") for one in slot.holders)
    if slot.leaving:
        yield slot.leaving, "Yielding"
    if slot.next and slot.phase == "Granting":
        yield slot.next, "Granting"


def read_pool(raw: Raw) -> PoolView:
    """Return the view of a resource."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    return PoolView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        num_slots=int(spec.get("slots") or 0),
        gpus_per_slot=int(spec.get("gpusPerSlot") or 1),
        held=status.get("heldSlots"),
        members=status.get("members"),
        is_released=bool(status.get("releasedSince")),
        is_current=status.get("observedGeneration") == metadata.get("generation"),
        slots=tuple(_read_slot(one) for one in status.get("slots") or ()),
        waiting=tuple(_read_waiter(one) for one in status.get("waiting") or ()),
        conditions=tuple(read_condition(one) for one in status.get("conditions") or ()),
    )


def _read_slot(raw: Raw) -> SlotView:
    words = {name: str(raw.get(name) or "") for name in ("name", "phase", "since", "node", "leaving", "next")}
    return SlotView(
        **words,
        epoch=int(raw.get("epoch") or 0),
        devices=tuple(str(one) for one in raw.get("devices") or ()),
        holders=tuple(HolderView(*_words(one, "replica", "since")) for one in raw.get("holders") or ()),
        way_out=str(raw.get("wayOut") or ""),
        deepening=tuple(str(one) for one in raw.get("deepening") or ()),
        sleepers=tuple(_read_sleeper(one) for one in raw.get("sleepers") or ()),
        refusals=tuple(_read_refusal(one) for one in raw.get("refusals") or ()),
    )


def _read_sleeper(raw: Raw) -> SleeperView:
    (replica,) = _words(raw, "replica")
    return SleeperView(replica, level=int(raw.get("level") or 0), residual_bytes=int(raw.get("residualBytes") or 0))


def _read_refusal(raw: Raw) -> RefusalView:
    replica, at, reason = _words(raw, "replica", "at", "reason")
    times, missing = int(raw.get("times") or 1), int(raw.get("missingBytes") or 0)
    return RefusalView(replica=replica, times=times, at=at, reason=reason, missing_bytes=missing)


def _read_waiter(raw: Raw) -> WaiterView:
    name, since = _words(raw, "name", "since")
    return WaiterView(name=name, since=since, wanted=raw.get("wanted"))


def _words(raw: Raw, *names: str) -> Iterator[str]:
    return (str(raw.get(name) or "") for name in names)
