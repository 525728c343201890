"""What to do about a pool now: who is given a slot, who leaves, the next step of each slot. Pure, stores nothing.

    recorded slots + who is there + who asks → slots as they have to be written → commands that follow from them

A slot's changes of one pass are written at once, before its command is given; commands of one slot say nothing of
another's. The gate of a replica that serves is opened by its deployment's own pass, which knows of blocks and
roll-outs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dormouse_operator.decide.condemned import first_epoch
from dormouse_operator.decide.pools import commands, switch
from dormouse_operator.decide.pools.arbiter import Decision, decide
from dormouse_operator.decide.pools.asking import demands_of
from dormouse_operator.decide.pools.claims import is_leftover
from dormouse_operator.decide.pools.commands import PodCommand
from dormouse_operator.decide.pools.releasing import idleness_of, release_due
from dormouse_operator.decide.pools.retiring import retire
from dormouse_operator.decide.pools.tenants import tenants_on
from dormouse_operator.model.pool_observed import PoolObserved
from dormouse_operator.model.pools import (
    Demands,
    Idleness,
    Replica,
    Sleeper,
    Slot,
    SlotPhase,
    Tenant,
    Tenants,
    TenantState,
)
from dormouse_operator.model.wanted import STANDBY_LEVEL

_FOLLOW = timedelta(seconds=0.5)  # how often those are looked at who wait: an end of requests is told by nobody
_MOST_WRITES = 8  # of one slot in one pass: more than any chain of changes has


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """The pool as it has to stand, what is to be done then, and when time alone may change that."""

    slots: tuple[Slot, ...]
    commands: tuple[PodCommand, ...]
    demands: Demands
    decision: Decision
    tenants: Mapping[str, Tenants]  # by slot
    idleness: Idleness
    due: datetime | None

    def is_recorded(self, observed: PoolObserved) -> bool:
        """Return whether who may have memory of which slot is to stay as it was recorded."""
        before = {slot.name: slot.epoch for slot in observed.pool.slots}
        return all(before.get(slot.name) == slot.epoch for slot in self.slots)

    @property
    def waiting(self) -> dict[str, tuple[datetime, int]]:
        """Return since when members wait, and for how many replicas, by name; who waits longest comes first."""
        since = ((demand.waiting_since, key.name, demand.wanted) for key, demand in self.demands.items())
        return {name: (time, wanted) for time, name, wanted in sorted(entry for entry in since if entry[0])}  # type: ignore[misc]  # no None is left


def plan_pool(observed: PoolObserved) -> PoolPlan:
    """Return what to do now. Nobody is given anything of a pool that is being deleted."""
    pool, now = observed.pool, observed.now
    tenants = {slot.name: tenants_on(observed, slot.name) for slot in _slots(observed)}
    slots = {slot.name: _with_sleepers(slot, observed, tenants[slot.name]) for slot in _slots(observed)}
    demands = {} if pool.is_deleting else demands_of(observed, slots)
    decision = decide(list(slots.values()), demands, pool.policy, now, gateways_heard=observed.gateways_heard)
    slots |= decision.apply_to(list(slots.values()), now)
    retired = {name: retire(slot, observed, demands) for name, slot in slots.items()}
    stepped = [_advance(slot, tenants[name], demands, observed) for name, slot in retired.items()]
    after = {slot.name: slot for slot, _ in stepped}
    steps = [step for _, step in stepped]
    waits = [step.until for step in steps if isinstance(step, commands.Wait) and step.until]
    idleness = idleness_of(pool, after.values(), demands, now, gateways_heard=observed.gateways_heard)
    dues = [*waits, decision.due, _follows(demands, now), release_due(pool, idleness, now)]
    return PoolPlan(
        slots=tuple(slot for slot in after.values() if _stays(slot, observed, tenants[slot.name])),
        commands=(
            *(step for step in steps if not isinstance(step, commands.Wait | commands.Write) and not _opens(step)),
            *_deepen(decision, after, tenants),
            *_clear_surplus(after, tenants, observed),
        ),
        demands=demands,
        decision=decision,
        tenants=tenants,
        idleness=idleness,
        due=min((due for due in dues if due), default=None),
    )


def _slots(observed: PoolObserved) -> list[Slot]:
    """Return the slots as recorded, and those that are new: they outrank what a pool of before told workers."""
    pool = observed.pool
    known = {slot.name: slot for slot in pool.slots}
    first = first_epoch(observed.now)
    fresh = {name: Slot(name=name, since=observed.now, epoch=first) for name in pool.slot_names if name not in known}
    return [*known.values(), *fresh.values()]


def _with_sleepers(slot: Slot, observed: PoolObserved, tenants: Tenants) -> Slot:
    """Return the slot with those that sleep there now."""
    levels = {
        Replica(member.key, pod.index): worker.sleep_level
        for member, pod in observed.pods_on(slot.name)
        if (worker := observed.answers.get(pod.uid))
    }
    depth = {TenantState.STANDBY: STANDBY_LEVEL}
    sleepers = tuple(
        Sleeper(
            replica=replica,
            level=depth.get(tenant.state, levels[replica]),
            residual_bytes=tenant.residual_bytes,
        )
        for replica, tenant in sorted(tenants.items())
        if tenant.state in {TenantState.ASLEEP, TenantState.STANDBY} and replica not in slot.may_hold
    )
    return replace(slot, sleepers=sleepers)


def _advance(slot: Slot, tenants: Tenants, demands: Demands, observed: PoolObserved) -> tuple[Slot, commands.Step]:
    """Return the slot after all that has to be written of it now, and the step that follows."""
    policy, now, num_writes = observed.pool.policy, observed.now, 0
    while isinstance(step := switch.next_step(slot, tenants, demands, policy, now), commands.Write):
        slot, num_writes = step.slot, num_writes + 1
        assert num_writes <= _MOST_WRITES, f"{slot.name} never comes to rest: {slot}"
    return slot, step


def _opens(step: PodCommand) -> bool:
    return isinstance(step, commands.SetGate) and step.is_open


def _deepen(decision: Decision, slots: Mapping[str, Slot], tenants: Mapping[str, Tenants]) -> list[PodCommand]:
    """Return what makes sleepers that crowd a slot give up their residue, where nothing is under way."""
    return [
        commands.EndEngine(replica, slot.epoch)
        for replica in decision.deepenings
        for name, slot in slots.items()
        if slot.is_settled and replica in tenants[name] and replica not in slot.may_hold
    ]


def _clear_surplus(
    slots: Mapping[str, Slot], tenants: Mapping[str, Tenants], observed: PoolObserved
) -> list[commands.DeletePod]:
    """Return the pods that have to leave a slot that goes: they are made anew on one that stays.

    A pod without a container waits for the claim that is made anew.
    """
    surplus = [slot for slot in slots.values() if not observed.stays(slot.name) and slot.is_settled]
    return [
        commands.DeletePod(replica)
        for slot in surplus
        for replica, tenant in tenants[slot.name].items()
        if replica not in slot.may_hold and not (tenant.is_deleting or _waits_there(slot, tenant, observed))
    ]


def _waits_there(slot: Slot, tenant: Tenant, observed: PoolObserved) -> bool:
    return tenant.state is TenantState.ABSENT and slot.name in observed.pool.slot_names


def _stays(slot: Slot, observed: PoolObserved, tenants: Tenants) -> bool:
    """Return whether a slot goes on to be recorded: one that is taken away is, for as long as anything is there."""
    is_used = slot.phase is not SlotPhase.FREE or bool(tenants)
    return slot.name in observed.pool.slot_names or is_used or is_leftover(observed, slot)


def _follows(demands: Demands, now: datetime) -> datetime | None:
    """Return when to look after those who wait, None if nobody does."""
    return now + _FOLLOW if any(demand.waiting_since for demand in demands.values()) else None
