"""The next step of one slot, from what was recorded of it and what is observed. Pure, stores nothing.

    Yielding(A→B) → A's gate shut → drained → asleep, without a grant, residue within bounds
        → Granting(B) → grant → awake, golden tokens matched → Held(B), gate open

Each step is derived anew and may be repeated: an operator that starts in the middle goes on where the last one was,
and of two operators the one with the older epoch is not heard.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from dormouse_operator.decide.pools.commands import (
    DeletePod,
    RevokeDevice,
    SetGate,
    Step,
    Wait,
    Write,
)
from dormouse_operator.decide.pools.leaving import leave, observed
from dormouse_operator.decide.pools.rising import find_intruder, rise
from dormouse_operator.decide.pools.transitions import begin_yield, clear, drop, evict, foul
from dormouse_operator.model.pools import (
    AT_REST,
    Demands,
    PoolPolicy,
    Replica,
    Slot,
    SlotPhase,
    Tenant,
    Tenants,
    TenantState,
    WayOut,
)


def next_step(slot: Slot, tenants: Tenants, demands: Demands, policy: PoolPolicy, now: datetime) -> Step:
    """Return the next step of a slot. `tenants` are all replicas that have a pod there."""
    if slot.phase is SlotPhase.FOULED:
        return _mend(slot, tenants, policy, now)
    if slot.phase is SlotPhase.YIELDING:
        return leave(slot, tenants, policy, now)
    if slot.phase is SlotPhase.GRANTING:
        return rise(slot, tenants, demands, policy, now)
    return _keep(slot, tenants, policy, now)


def _mend(slot: Slot, tenants: Tenants, policy: PoolPolicy, now: datetime) -> Step:
    """Wait until whoever fouled a slot is gone; see to it that it goes."""
    gone = _gone(slot, tenants)
    if gone:
        return Write(drop(slot, gone, now))
    if slot.leaving is None:
        return _use_again(slot, tenants, policy, now)
    return Wait() if observed(tenants, slot.leaving).is_deleting else DeletePod(slot.leaving)


def _use_again(slot: Slot, tenants: Tenants, policy: PoolPolicy, now: datetime) -> Step:
    """Go on where the record could not be read. Nobody but a switch opens a holder again that one had drained."""
    there = [observed(tenants, holding.replica) for holding in slot.holders]
    if any(tenant.state is TenantState.SILENT and tenant.silent_s < policy.silent_s for tenant in there):
        return Wait()
    draining = (tenant for tenant in there if tenant.state is TenantState.DRAINING and not tenant.is_deleting)
    return Write(clear(slot, next((tenant.replica for tenant in draining), None), now))


def _gone(slot: Slot, tenants: Tenants) -> set[Replica]:
    """Return the holders of which nothing is left on the device, and that cannot take any without being told."""
    return {holding.replica for holding in slot.holders if _is_gone(observed(tenants, holding.replica))}


def _is_gone(tenant: Tenant) -> bool:
    is_empty = tenant.state is TenantState.STANDBY and not (tenant.grant_epoch or tenant.residual_bytes)
    return tenant.state is TenantState.ABSENT or is_empty


def _keep(slot: Slot, tenants: Tenants, policy: PoolPolicy, now: datetime) -> Step:
    """See after the holders of a slot where nothing is under way."""
    gone = _gone(slot, tenants)
    if gone:
        return Write(drop(slot, gone, now))
    for holding in slot.holders:
        if step := _keep_one(slot, observed(tenants, holding.replica), policy, now):
            return step
    return _hush(slot, tenants, now)


def _keep_one(slot: Slot, tenant: Tenant, policy: PoolPolicy, now: datetime) -> Step | None:
    """Return what has to be done with a holder, None if it may go on."""
    if tenant.has_lost_node:
        return Write(foul(slot, tenant.replica, now))
    if tenant.state is TenantState.SILENT and tenant.silent_s >= policy.silent_s:
        return Write(begin_yield(slot, tenant.replica, None, now, WayOut.POD))
    if tenant.state is TenantState.FAILED or (tenant.takes_memory and not tenant.grant_epoch):
        return Write(begin_yield(slot, tenant.replica, None, now, WayOut.STANDBY))
    if tenant.state is TenantState.RISING and now >= _rises_until(slot, tenant, policy):
        return Write(begin_yield(slot, tenant.replica, None, now, WayOut.STANDBY))
    if tenant.state in AT_REST:
        return Write(begin_yield(slot, tenant.replica, None, now))
    if tenant.state is TenantState.SERVING and not tenant.gate_open:
        return SetGate(tenant.replica, is_open=True)
    return None


def _rises_until(slot: Slot, tenant: Tenant, policy: PoolPolicy) -> datetime:
    """Return until when a holder may be on its way to serve: since its engine died, or its slot is used again."""
    return max(slot.since, tenant.engine_failed or slot.since) + timedelta(seconds=policy.wake_s)


def _hush(slot: Slot, tenants: Tenants, now: datetime) -> Step:
    """Take back what nobody was to have any more: memory first, then grants."""
    if intruder := find_intruder(slot, tenants):
        return Write(evict(slot, intruder, now))
    for tenant in tenants.values():
        if tenant.grant_epoch and tenant.state in AT_REST and tenant.replica not in slot.may_hold:
            return RevokeDevice(tenant.replica, slot.epoch)
    return Wait()
