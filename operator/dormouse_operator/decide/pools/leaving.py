"""The way out of a slot: the next step of a replica that has to give its memory back. Pure.

    gate shut → requests end or move, or their time is over → asleep → no grant → residue within bounds: it is out

Each way out that does not lead out in its time is followed by a less gentle one; the kernel's own is the last that
needs a worker. Only what is observed counts as out: a worker that does not answer still has everything.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from dormouse_operator.decide.pools.commands import (
    DeletePod,
    Drain,
    EndEngine,
    RevokeDevice,
    SetGate,
    Sleep,
    Step,
    Wait,
    Write,
)
from dormouse_operator.decide.pools.transitions import foul, go_deeper, let_go
from dormouse_operator.model.pools import PoolPolicy, Replica, Slot, Tenant, Tenants, TenantState, WayOut
from dormouse_operator.model.wanted import STANDBY_LEVEL

_SLEEPS = {WayOut.LEVEL1: 1, WayOut.LEVEL2: 2}
_DRAIN_LOOK = timedelta(seconds=0.2)  # how often a worker is looked at that drains: it tells nobody that it has
_NEXT = {WayOut.LEVEL1: WayOut.LEVEL2, WayOut.LEVEL2: WayOut.STANDBY, WayOut.STANDBY: WayOut.POD}


def leave(slot: Slot, tenants: Tenants, policy: PoolPolicy, now: datetime) -> Step:
    """Return the next step of a slot that is Yielding."""
    assert slot.leaving is not None
    tenant = observed(tenants, slot.leaving)
    if tenant.has_lost_node:
        return Write(foul(slot, slot.leaving, now))
    if is_out(slot, tenant, tenants, policy):
        return Write(let_go(slot, now))
    if deeper := _deeper(slot, tenant, tenants, policy, now):
        return Write(go_deeper(slot, deeper, now))
    deadline = slot.since + _time_for(slot.way_out, policy)
    if now >= deadline:  # of the last way: others go deeper before
        return Write(foul(slot, slot.leaving, now))
    return _command(slot, tenant, policy, now) or Wait(deadline)


def observed(tenants: Tenants, replica: Replica) -> Tenant:
    """Return what is known of a replica. One that is not there has no pod."""
    return tenants.get(replica) or Tenant(replica=replica, state=TenantState.ABSENT)


def is_out(slot: Slot, tenant: Tenant, tenants: Tenants, policy: PoolPolicy) -> bool:
    """Return whether a replica has given back what it has to, and cannot take it again."""
    if tenant.state is TenantState.ABSENT:
        return True
    if tenant.grant_epoch:
        return False
    if tenant.state is TenantState.STANDBY:
        return tenant.residual_bytes == 0
    return tenant.state is TenantState.ASLEEP and slot.way_out in _SLEEPS and _fits(tenant, tenants, policy)


def _fits(tenant: Tenant, tenants: Tenants, policy: PoolPolicy) -> bool:
    """Return whether a sleeper leaves no more than its reserve, or no more than others have left of theirs."""
    if tenant.residual_bytes <= policy.sleeper_reserve_bytes:
        return True
    asleep = (other for other in tenants.values() if other.state is TenantState.ASLEEP)
    return sum(other.residual_bytes for other in asleep) <= policy.residue_limit_bytes


def _deeper(slot: Slot, tenant: Tenant, tenants: Tenants, policy: PoolPolicy, now: datetime) -> WayOut | None:
    """Return the way to take instead, None while the present one may still lead out."""
    if slot.way_out is WayOut.POD:
        return None
    if tenant.state is TenantState.SILENT and tenant.silent_s >= policy.silent_s:
        return WayOut.POD
    if slot.way_out is WayOut.STANDBY:
        return WayOut.POD if _is_late(slot, policy, now) else None
    if tenant.state is TenantState.FAILED or _is_late(slot, policy, now):
        return WayOut.STANDBY
    if tenant.state is TenantState.ASLEEP:
        return None if _fits(tenant, tenants, policy) else WayOut.STANDBY
    return _NEXT[slot.way_out] if tenant.refused_epoch == slot.epoch else None


def _is_late(slot: Slot, policy: PoolPolicy, now: datetime) -> bool:
    return now >= slot.since + _time_for(slot.way_out, policy)


def _time_for(way_out: WayOut, policy: PoolPolicy) -> timedelta:
    """Return how long a way out may take."""
    asleep_s = policy.drain_s + policy.sleep_s
    times_s = {WayOut.STANDBY: policy.standby_s, WayOut.POD: policy.pod_gone_s}
    return timedelta(seconds=times_s.get(way_out, asleep_s))


def _command(slot: Slot, tenant: Tenant, policy: PoolPolicy, now: datetime) -> Step | None:
    """Return what to tell whom; None if that was told, and only its answer is missing."""
    if tenant.gate_open:
        return SetGate(tenant.replica, is_open=False)
    if slot.way_out is WayOut.POD:
        return None if tenant.is_deleting else DeletePod(tenant.replica)
    if tenant.state is TenantState.SILENT:
        return None
    if tenant.state is TenantState.STANDBY or (tenant.state is TenantState.ASLEEP and slot.way_out in _SLEEPS):
        return RevokeDevice(tenant.replica, slot.epoch) if tenant.grant_epoch else None
    if slot.way_out is WayOut.STANDBY:
        return EndEngine(tenant.replica, slot.epoch)
    return _towards_sleep(slot, tenant, policy, now)


def _towards_sleep(slot: Slot, tenant: Tenant, policy: PoolPolicy, now: datetime) -> Step:
    """Return what brings an awake replica to sleep. Requests are ended only once their time is over.

    An engine that takes more than it may could not be woken again: it ends, and starts within bounds the next time.
    """
    drained_by = slot.since + timedelta(seconds=policy.drain_s)
    is_late = now >= drained_by
    if tenant.running_requests and not is_late:
        look = Wait(min(drained_by, now + _DRAIN_LOOK))
        return look if tenant.state is TenantState.DRAINING else Drain(tenant.replica)
    level = STANDBY_LEVEL if tenant.is_oversized else _SLEEPS[slot.way_out]
    return Sleep(tenant.replica, level, slot.epoch, tenant.request_counter, must_abort=is_late)
