"""The way onto a slot: the next step of a replica that was given the device and does not serve yet. Pure.

    nobody else has memory → grant → wake → it serves: it holds the slot, and its gate opens

A replica that does not fit tries once more after sleepers gave their residues up. One that does not come to serve is
turned away: it leaves as any other, is not woken again for a while, and the slot is somebody else's in the meantime.
Where another has memory without a grant, that one leaves first, and what fails beside it is nobody's fault.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from dormouse_operator.decide.pools.commands import EndEngine, GrantDevice, RevokeDevice, Step, Wait, WakeUp, Write
from dormouse_operator.decide.pools.deepening import deepenings
from dormouse_operator.decide.pools.leaving import observed
from dormouse_operator.decide.pools.transitions import evict, foul, retry, settle, turn_away, withdraw
from dormouse_operator.model.pools import (
    AT_REST,
    Demands,
    PoolPolicy,
    Refusal,
    Replica,
    Slot,
    Tenant,
    Tenants,
    TenantState,
    WayOut,
)

FAILED, GONE, GONE_SILENT = "WakeFailed", "WorkerGone", "WorkerSilent"
TOO_SLOW, TOO_SMALL, REFUSED, NODE_FULL = "WakeTooSlow", "SlotTooSmall", "WakeRefused", "NodeFull"
REASONS = (FAILED, GONE, GONE_SILENT, TOO_SLOW, TOO_SMALL, REFUSED, NODE_FULL)  # of refusals, all that there are


def rise(slot: Slot, tenants: Tenants, demands: Demands, policy: PoolPolicy, now: datetime) -> Step:
    """Return the next step of a slot that is Granting."""
    assert slot.next is not None
    tenant = observed(tenants, slot.next)
    if tenant.state is TenantState.ABSENT:
        return Write(withdraw(slot, _refusal(slot, tenant, GONE, now), now))
    if tenant.has_lost_node:
        return Write(foul(slot, slot.next, now))
    intruder = find_intruder(slot, tenants)
    if failed := _failure(slot, tenant, policy, now):
        reason, way_out = failed
        refusal = None if intruder else _refusal(slot, tenant, reason, now)
        return Write(turn_away(slot, refusal, way_out, now))
    if intruder and tenant.state in AT_REST:
        return RevokeDevice(slot.next, slot.epoch) if tenant.grant_epoch else Write(evict(slot, intruder, now))
    if tenant.refused_epoch == slot.epoch:
        return Write(_once_more_or_not(slot, tenant, tenants, demands, now))
    if tenant.state is TenantState.SERVING and tenant.grant_epoch:
        return Write(settle(slot, now))
    in_the_way = intruder or _giving_up(slot, tenants, policy, now)
    if in_the_way:
        return EndEngine(in_the_way, slot.epoch)
    if _lacks_memory(tenant):
        return Wait(slot.since + timedelta(seconds=policy.memory_s))
    step = _command(slot, tenant)
    return step or Wait(slot.since + timedelta(seconds=policy.wake_s))


def _failure(slot: Slot, tenant: Tenant, policy: PoolPolicy, now: datetime) -> tuple[str, WayOut] | None:
    """Return why a replica will not come to serve, and how it has to leave; None while it may."""
    if tenant.state is TenantState.FAILED:
        return FAILED, WayOut.STANDBY
    if tenant.state is TenantState.SILENT and tenant.silent_s >= policy.silent_s:
        return GONE_SILENT, WayOut.POD
    if now >= slot.since + timedelta(seconds=policy.wake_s):
        return TOO_SLOW, WayOut.STANDBY
    if _lacks_memory(tenant) and now >= slot.since + timedelta(seconds=policy.memory_s):
        return NODE_FULL, WayOut.LEVEL1
    return None


def _lacks_memory(tenant: Tenant) -> bool:
    """Return whether a sleeper waits for memory of its node, which its own pass asks for."""
    return tenant.is_short and tenant.state in AT_REST and not tenant.grant_epoch


def _refusal(slot: Slot, tenant: Tenant, reason: str, now: datetime) -> Refusal:
    """Return what is remembered of the failure, counted on from those before."""
    assert slot.next is not None
    before = slot.refusal_of(slot.next)
    times = before.times + 1 if before else 1
    return Refusal(replica=slot.next, times=times, at=now, reason=reason, missing_bytes=tenant.missing_bytes)


def _once_more_or_not(slot: Slot, tenant: Tenant, tenants: Tenants, demands: Demands, now: datetime) -> Slot:
    """Return the slot after a refusal: sleepers go deeper for it, unless they did already, or none is left.

    One that has the memory and does not wake starts from its files the next time.
    """
    if not tenant.missing_bytes:
        return turn_away(slot, _refusal(slot, tenant, REFUSED, now), WayOut.STANDBY, now)
    refusal = _refusal(slot, tenant, TOO_SMALL, now)
    rest = [other for other in tenants.values() if other.replica not in slot.may_hold]
    deeper = deepenings(rest, demands, to_free_bytes=tenant.missing_bytes)
    if slot.deepening or not deeper:
        return turn_away(slot, refusal, WayOut.LEVEL1, now)
    return retry(slot, refusal, deeper, now)


def _giving_up(slot: Slot, tenants: Tenants, policy: PoolPolicy, now: datetime) -> Replica | None:
    """Return a sleeper that has to give up its residue still, None also once the time for it is over."""
    if now >= slot.since + timedelta(seconds=policy.standby_s):
        return None
    return next((found for found in slot.deepening if observed(tenants, found).state is TenantState.ASLEEP), None)


def find_intruder(slot: Slot, tenants: Tenants) -> Replica | None:
    """Return a replica that has memory which it was not given."""
    may_hold = slot.may_hold
    return next(
        (found.replica for found in tenants.values() if found.takes_memory and found.replica not in may_hold), None
    )


def _command(slot: Slot, tenant: Tenant) -> Step | None:
    """Return what to tell the replica; None if that was told, and only its answer is missing."""
    if tenant.state is TenantState.SILENT:
        return None
    if tenant.grant_epoch < slot.epoch:
        return GrantDevice(tenant.replica, slot.epoch, tenant.instance)
    return None if tenant.state is TenantState.RISING else WakeUp(tenant.replica, slot.epoch)
